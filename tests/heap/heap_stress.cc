// Calls the functions of malloc() at random and checks the memory. Run it with libtutti_heap.so preloaded:
//
//   LD_PRELOAD=.../libtutti_heap.so heap_stress SEED OPERATIONS THREADS
//
// Each thread does OPERATIONS / THREADS operations with blocks of up to 4 MiB. Each block has contents that depend on
// its number; they are checked when it is resized or freed, also by other threads and in forked children. The exit
// status is 1 if a check fails, and 3 if large blocks do not come from the heap.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Block {
  unsigned char* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t number = 0;
};

std::atomic<std::uint32_t> last_number{0};
std::atomic<std::uint32_t> forks{0};
std::mutex exchange_mutex;
std::array<Block, 64> exchanged;  // blocks that one thread has allocated and another one takes

[[noreturn]] void fail(const char* what, const Block& block) {
  std::fprintf(stderr, "heap_stress: %s: block %u of %zu bytes at %p\n", what, block.number, block.bytes,
               static_cast<void*>(block.data));
  std::_Exit(1);
}

unsigned char value(const Block& block, std::size_t at) {
  return static_cast<unsigned char>((block.number * 2654435761U + at / 512 * 40503U) >> 13);
}

// Writes and checks the first and last bytes, and some bytes of each part of 512 bytes.
template <class Function>
void for_some(const Block& block, Function function) {
  for (std::size_t at = 0; at < block.bytes; at += at < 64 || at + 64 > block.bytes ? 1 : 127) function(at);
  if (block.bytes > 0) function(block.bytes - 1);
}
void fill(const Block& block) {
  for_some(block, [&block](std::size_t at) { block.data[at] = value(block, at); });
}
void check(const Block& block) {
  for_some(block, [&block](std::size_t at) {
    if (block.data[at] != value(block, at)) fail("wrong contents", block);
  });
}

class Worker {
 public:
  explicit Worker(std::uint32_t seed) : random_(seed) {}

  void run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      Block& block = blocks_[below(blocks_.size())];
      switch (below(16)) {
        case 0: resize(block); break;
        case 1: exchange(block); break;
        case 2:
          if (below(512) == 0) {
            fork_child();
          } else {
            drop(block);
          }
          break;
        default: release(block); allocate(block);
      }
    }
    for (Block& block : blocks_) release(block);
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  // Most blocks are small, as in real programs; one in eight is large enough for the heap.
  std::size_t size() { return below(8) == 0 ? below(below(16) == 0 ? 4 << 20 : 256 << 10) : below(2000); }

  void allocate(Block& block) {
    block = {.bytes = size(), .number = ++last_number};
    void* data = nullptr;
    std::size_t alignment = 1;
    switch (below(6)) {
      case 0:
        data = std::calloc(1, block.bytes);
        for_some(block, [&](std::size_t at) {
          if (static_cast<unsigned char*>(data)[at] != 0) fail("calloc() returned memory that is not zero", block);
        });
        break;
      case 1:
        alignment = std::size_t{sizeof(void*)} << below(12);
        if (posix_memalign(&data, alignment, block.bytes) != 0) data = nullptr;
        break;
      case 2:
        alignment = std::size_t{16} << below(10);
        data = std::aligned_alloc(alignment, (block.bytes + alignment - 1) / alignment * alignment);
        break;
      default: data = std::malloc(block.bytes);
    }
    block.data = static_cast<unsigned char*>(data);
    if (block.data == nullptr && block.bytes > 0) fail("no memory", block);
    if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) fail("wrong alignment", block);
    if (block.data != nullptr && malloc_usable_size(block.data) < block.bytes) fail("too small", block);
    fill(block);
  }
  void release(Block& block) {
    check(block);
    std::free(block.data);
    block = {};
  }
  void resize(Block& block) {
    if (block.data == nullptr) return;
    check(block);
    const std::size_t bytes = 1 + size();
    const Block before{block.data, std::min(bytes, block.bytes), block.number};
    auto* const data = static_cast<unsigned char*>(std::realloc(block.data, bytes));
    if (data == nullptr) fail("realloc() failed", block);
    for (std::size_t at = 0; at + 64 < before.bytes; at += at < 64 ? 1 : 127) {
      if (data[at] != value(before, at)) fail("realloc() lost contents", block);
    }
    block = {data, bytes, ++last_number};
    fill(block);
  }
  // MADV_DONTNEED makes whole pages zero, and no others.
  void drop(Block& block) {
    constexpr std::size_t kPage = 4096;
    if (block.bytes < 40'000 || reinterpret_cast<std::uintptr_t>(block.data) % kPage != 0) return;
    check(block);
    const std::size_t bytes = block.bytes / 2 / kPage * kPage;
    if (madvise(block.data, bytes, MADV_DONTNEED) != 0) fail("madvise() failed", block);
    for (std::size_t at = 0; at < bytes; at += 61) {
      if (block.data[at] != 0) fail("MADV_DONTNEED kept contents", block);
    }
    for (std::size_t at = 0; at < bytes; ++at) block.data[at] = value(block, at);
    check(block);
  }
  void exchange(Block& block) {
    const std::scoped_lock lock(exchange_mutex);
    std::swap(block, exchanged[below(exchanged.size())]);
  }
  // The child checks the blocks of this thread, changes all, and uses the allocator. Its parent must not see that.
  void fork_child() {
    const pid_t pid = fork();
    if (pid < 0) return;
    if (pid > 0) ++forks;
    if (pid == 0) {
      for (Block& block : blocks_) {
        check(block);
        std::memset(block.data, 0xee, block.bytes);
      }
      for (int i = 0; i < 100; ++i) {
        Block& block = blocks_[below(blocks_.size())];
        std::free(block.data);
        allocate(block);
      }
      std::_Exit(0);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) fail("a child has failed", {});
    for (const Block& block : blocks_) check(block);
  }

  std::minstd_rand random_;
  std::array<Block, 300> blocks_;
};

// Whether malloc() takes large blocks from the heap.
bool heap_is_loaded() {
  void* const block = std::malloc(1 << 20);
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  std::free(block);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &from, &to) != 2 || address < from || address >= to) continue;
    return line.find("/memfd:tutti heap") != line.npos;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: heap_stress SEED OPERATIONS THREADS\n");
    return 2;
  }
  if (!heap_is_loaded()) {
    std::fprintf(stderr, "heap_stress: large blocks do not come from the heap: preload libtutti_heap.so\n");
    return 3;
  }
  const auto seed = static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10));
  const std::uint64_t operations = std::strtoull(argv[2], nullptr, 10);
  const auto thread_count = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([=] { Worker(seed * 1000 + t + 1).run(operations / thread_count); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Block& block : exchanged) {
    check(block);
    std::free(block.data);
  }
  std::printf("%s operations, %u blocks, %u forks: no error\n", argv[2], last_number.load(), forks.load());
  return 0;
}
