#include "heap/heap.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace tutti {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Makes the pages of this memory resident, and gives each page different contents.
void fill(void* block, std::size_t bytes, std::uint32_t seed) {
  std::minstd_rand random(seed);
  for (auto& word : std::span(static_cast<std::uint32_t*>(block), bytes / sizeof(std::uint32_t))) {
    word = static_cast<std::uint32_t>(random());
  }
}
bool is_filled(const void* block, std::size_t bytes, std::uint32_t seed) {
  std::minstd_rand random(seed);
  const std::span words(static_cast<const std::uint32_t*>(block), bytes / sizeof(std::uint32_t));
  return std::all_of(words.begin(), words.end(), [&random](std::uint32_t word) { return word == random(); });
}
bool is_zero(const void* block, std::size_t bytes) {
  const std::span words(static_cast<const std::byte*>(block), bytes);
  return std::all_of(words.begin(), words.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// The memory that the pages of [data, data + bytes) use, in bytes.
std::size_t resident_bytes(void* data, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / 4096);
  EXPECT_EQ(mincore(data, bytes, pages.data()), 0);
  const auto resident = std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; });
  return 4096 * static_cast<std::size_t>(resident);
}

// A heap is never destroyed, so each test has one of its own, which stays until the program ends.
class HeapTest : public testing::Test {
 protected:
  // Forks as the handlers of pthread_atfork() would do it. Returns the exit status of the child, which runs `child`.
  int fork_and_wait(const std::function<int()>& child) {
    heap_.before_fork();
    const pid_t pid = fork();
    if (pid == 0) {
      heap_.after_fork_in_child();
      _exit(child());
    }
    heap_.after_fork_in_parent();
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static Heap& create() {
    static auto* const kHeaps = new std::vector<std::unique_ptr<Heap>>;  // so that no heap is a leak
    return *kHeaps->emplace_back(std::make_unique<Heap>());
  }

  Heap& heap_ = create();
};

TEST_F(HeapTest, BlocksAreAlignedDistinctAndKeepTheirContents) {
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (std::uint32_t i = 0; i < 40; ++i) {
    const std::size_t bytes = 32 * 1024 + std::size_t{i} * 50'000;
    const std::size_t alignment = std::size_t{1} << (i % 22);
    void* const block = heap_.allocate(bytes, alignment, false);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0U) << i;
    EXPECT_TRUE(heap_.contains(block));
    EXPECT_GE(heap_.usable_bytes(block), bytes);
    fill(block, bytes, i);
    blocks.emplace_back(block, bytes);
  }
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(is_filled(blocks[i].first, blocks[i].second, i)) << i;
    heap_.release(blocks[i].first);
  }
  int on_the_stack = 0;
  EXPECT_FALSE(heap_.contains(&on_the_stack));
  EXPECT_FALSE(heap_.contains(nullptr));
}

TEST_F(HeapTest, AZeroedBlockIsZeroWhateverThePagesHeldBefore) {
  void* const first = heap_.allocate(8 * kMiB, 1, false);
  fill(first, 8 * kMiB, 1);
  heap_.release(first);
  void* const again = heap_.allocate(8 * kMiB, 1, true);
  EXPECT_EQ(again, first);
  EXPECT_TRUE(is_zero(again, 8 * kMiB));
  heap_.release(again);
  // Few of the pages are dirty: the others get no memory.
  void* const large = heap_.allocate(48 * kMiB, 1, true);
  EXPECT_LE(resident_bytes(large, 48 * kMiB), 8 * kMiB);
  EXPECT_TRUE(is_zero(large, 48 * kMiB));
}

TEST_F(HeapTest, FreedMemoryGoesBackToTheSystem) {
  void* const block = heap_.allocate(256 * kMiB, 1, false);
  std::memset(block, 1, 256 * kMiB);
  EXPECT_GE(resident_bytes(block, 256 * kMiB), 128 * kMiB);  // the system may have swapped pages out
  heap_.release(block);
  EXPECT_EQ(resident_bytes(block, 256 * kMiB), 0U);
  // A small block keeps its memory for the next one.
  void* const small = heap_.allocate(kMiB, 1, false);
  std::memset(small, 1, kMiB);
  heap_.release(small);
  EXPECT_GE(resident_bytes(small, kMiB), kMiB / 2);
}

TEST_F(HeapTest, FreePagesUseLittleMemoryHoweverTheyAreSpread) {
  // Blocks that lie between others, so that the free extents do not merge.
  std::vector<void*> freed;
  std::vector<void*> kept;
  for (int i = 0; i < 100; ++i) {
    freed.push_back(heap_.allocate(2 * kMiB, 1, false));
    std::memset(freed.back(), 1, 2 * kMiB);
    kept.push_back(heap_.allocate(2 * kMiB, 1, false));
  }
  for (void* block : freed) heap_.release(block);
  std::size_t bytes = 0;
  for (void* block : freed) bytes += resident_bytes(block, 2 * kMiB);
  EXPECT_LE(bytes, 64 * kMiB);
  EXPECT_GE(bytes, 16 * kMiB) << "some memory is kept for the next blocks";
  for (void* block : kept) heap_.release(block);
}

TEST_F(HeapTest, ABlockThatShrinksReturnsItsMemory) {
  void* const block = heap_.allocate(256 * kMiB, 1, false);
  std::memset(block, 1, 256 * kMiB);
  EXPECT_TRUE(heap_.resize(block, kMiB));
  EXPECT_LE(resident_bytes(block, 256 * kMiB), 4 * kMiB);
}

TEST_F(HeapTest, ABlockIsResizedInPlaceIfThereIsRoom) {
  void* const block = heap_.allocate(kMiB, 1, false);
  fill(block, kMiB, 1);
  EXPECT_TRUE(heap_.resize(block, 2 * kMiB));
  EXPECT_EQ(heap_.usable_bytes(block), 2 * kMiB);
  EXPECT_TRUE(is_filled(block, kMiB, 1));
  void* const next = heap_.allocate(kMiB, 1, false);
  EXPECT_EQ(next, static_cast<std::byte*>(block) + 2 * kMiB);
  EXPECT_FALSE(heap_.resize(block, 3 * kMiB));
  EXPECT_TRUE(heap_.resize(block, kMiB / 2));
  EXPECT_TRUE(is_filled(block, kMiB / 2, 1));
  EXPECT_EQ(heap_.usable_bytes(block), kMiB / 2);
}

TEST_F(HeapTest, ItReturnsNullForBlocksThatItCannotServe) {
  EXPECT_EQ(heap_.allocate(std::size_t{1} << 60, 1, false), nullptr);
  EXPECT_EQ(heap_.allocate(kMiB, std::size_t{1} << 30, false), nullptr);  // a segment starts at a multiple of 2 MiB
  EXPECT_EQ(heap_.problem(), nullptr);
  errno = EDOM;
  void* const block = heap_.allocate(kMiB, 1, false);
  heap_.release(block);
  EXPECT_EQ(errno, EDOM);
}

TEST_F(HeapTest, AWrongAddressEndsTheProcess) {
  auto* const block = static_cast<std::byte*>(heap_.allocate(kMiB, 1, false));
  EXPECT_DEATH(heap_.release(block + 4096), "not a block");
  EXPECT_DEATH(heap_.release(block + 8), "not a block");
  heap_.release(block);
  EXPECT_DEATH(heap_.release(block), "not a block");
}

TEST_F(HeapTest, TheDescriptorOfASegmentShowsTheSamePages) {
  auto* const block = static_cast<std::byte*>(heap_.allocate(kMiB, 1, false));
  HeapSegment segment{};
  ASSERT_TRUE(heap_.find(block + 1000, 2000, segment));
  EXPECT_LE(segment.start, block);
  const int fd = heap_.open_segment(segment.number);
  ASSERT_GE(fd, 0);
  void* const view = mmap(nullptr, segment.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(view, MAP_FAILED);
  close(fd);
  block[1234] = std::byte{5};
  EXPECT_EQ((static_cast<std::byte*>(view) + (block - segment.start))[1234], std::byte{5});
  munmap(view, segment.bytes);
  // Memory that is not a block, or reaches beyond the segment, is not found.
  EXPECT_FALSE(heap_.find(block, segment.bytes + 1, segment));
  EXPECT_FALSE(heap_.find(&segment, sizeof segment, segment));
  heap_.release(block);
  EXPECT_FALSE(heap_.find(block, 1, segment));
}

TEST_F(HeapTest, ADescriptorThatTheProgramHasClosedIsNotUsed) {
  void* const block = heap_.allocate(kMiB, 1, false);
  HeapSegment segment{};
  ASSERT_TRUE(heap_.find(block, kMiB, segment));
  // Finds the descriptor of the heap, and replaces it by that of another file.
  const int probe = heap_.open_segment(segment.number);
  ASSERT_GE(probe, 0);
  close(probe);
  for (int fd = 3; fd < probe; ++fd) {
    char name[64] = {};
    if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof name - 1) < 0) continue;
    if (std::string(name).find("tutti heap") != std::string::npos) dup2(STDERR_FILENO, fd);
  }
  EXPECT_EQ(heap_.open_segment(segment.number), -1);
  fill(block, kMiB, 3);
  EXPECT_EQ(fork_and_wait([&] { return is_filled(block, kMiB, 3) ? 0 : 1; }), 0);
  heap_.release(block);
}

TEST_F(HeapTest, AChildHasCopiesAndItsOwnBlocks) {
  void* const block = heap_.allocate(3 * kMiB, 1, false);
  void* const untouched = heap_.allocate(kMiB, 1, true);
  void* const freed = heap_.allocate(kMiB, 1, false);
  fill(block, 3 * kMiB, 1);
  fill(freed, kMiB, 2);
  heap_.release(freed);
  const int status = fork_and_wait([&] {
    if (!is_filled(block, 3 * kMiB, 1) || !is_zero(untouched, kMiB)) return 1;
    HeapSegment segment{};
    if (heap_.find(block, kMiB, segment)) return 2;  // nobody can map the copies
    fill(block, 3 * kMiB, 7);
    void* const own = heap_.allocate(kMiB, 1, false);
    if (own == nullptr || !heap_.find(own, kMiB, segment)) return 3;
    fill(own, kMiB, 8);
    if (!heap_.resize(block, kMiB) || heap_.resize(block, 5 * kMiB)) return 4;
    heap_.release(block);
    heap_.release(untouched);
    // A grandchild has copies of the child's blocks.
    const int grandchild = fork_and_wait([&] { return is_filled(own, kMiB, 8) ? 0 : 1; });
    heap_.release(own);
    return grandchild == 0 ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_filled(block, 3 * kMiB, 1));
  fill(block, 3 * kMiB, 9);
  heap_.release(block);
}

TEST_F(HeapTest, AChildHasCopiesOfAllSegments) {
  std::vector<void*> blocks;
  std::set<std::uint32_t> segments;
  for (std::uint32_t i = 0; i < 6; ++i) {
    blocks.push_back(heap_.allocate(50 * kMiB, 1, false));
    ASSERT_NE(blocks.back(), nullptr);
    fill(blocks.back(), kMiB, i);
    HeapSegment segment{};
    ASSERT_TRUE(heap_.find(blocks.back(), 50 * kMiB, segment));
    segments.insert(segment.number);
  }
  EXPECT_GE(segments.size(), 3U);
  const int status = fork_and_wait([&] {
    for (std::uint32_t i = 0; i < 6; ++i) {
      if (!is_filled(blocks[i], kMiB, i)) return 1;
      fill(blocks[i], kMiB, 100);
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
  for (std::uint32_t i = 0; i < 6; ++i) EXPECT_TRUE(is_filled(blocks[i], kMiB, i)) << i;
}

TEST_F(HeapTest, AChildCopiesPagesThatCannotBeRead) {
  auto* const block = static_cast<std::byte*>(heap_.allocate(kMiB, 1, false));
  fill(block, kMiB, 1);
  ASSERT_EQ(mprotect(block, 4096, PROT_NONE), 0);  // as a guard page of a stack
  EXPECT_EQ(fork_and_wait([&] { return is_filled(block, kMiB, 1) ? 0 : 1; }), 0);
  ASSERT_EQ(mprotect(block, 4096, PROT_READ | PROT_WRITE), 0);
}

TEST_F(HeapTest, AForkOnAStackInTheHeapIsRefused) {
  static Heap* heap = nullptr;
  heap = &heap_;
  constexpr std::size_t kStack = 4 * kMiB;  // sanitizers need more than usual
  const auto fork_there = [] {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, heap->allocate(kStack, 4096, false), kStack);
    pthread_t thread{};
    pthread_create(
        &thread, &attributes,
        [](void*) -> void* {
          heap->before_fork();
          return nullptr;
        },
        nullptr);
    pthread_join(thread, nullptr);
  };
  EXPECT_DEATH(fork_there(), "fork\\(\\) on a stack");
}

// If a thread ended in the middle of a function of the heap, the others would wait for ever.
TEST_F(HeapTest, ACancelledThreadFinishesWhatItDoes) {
  bool allocated = false;
  bool forked = false;
  std::thread thread([&] {
    pthread_cancel(pthread_self());
    allocated = heap_.allocate(kMiB, 1, false) != nullptr;  // the first call, which opens files
    heap_.before_fork();
    heap_.after_fork_in_parent();
    forked = true;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  });
  thread.join();
  EXPECT_TRUE(allocated);
  EXPECT_TRUE(forked);
  EXPECT_NE(heap_.allocate(kMiB, 1, false), nullptr);
}

TEST_F(HeapTest, AForkWhileTheSameThreadAllocatesIsRefused) {
  EXPECT_DEATH(
      {
        heap_.before_fork();  // as if a signal handler forks while the lock is held
        heap_.before_fork();
      },
      "signal handler");
}

TEST_F(HeapTest, LockedMemoryDoesNotKeepOtherMemory) {
  // The system does not take back a range with locked pages. The heap tries this one first, because it is the longest.
  // RLIMIT_MEMLOCK can be small, so only one page is locked; if it is 0, the rest of the test must hold as well.
  void* const locked = heap_.allocate(8 * kMiB, 1, false);
  std::vector<void*> freed;
  for (int i = 0; i < 40; ++i) {
    heap_.allocate(4 * kMiB, 1, false);  // keeps the free extents apart
    freed.push_back(heap_.allocate(4 * kMiB, 1, false));
    std::memset(freed.back(), 1, 4 * kMiB);
  }
  std::memset(locked, 1, 8 * kMiB);
  static_cast<void>(mlock(locked, 4096));
  heap_.release(locked);
  for (void* block : freed) heap_.release(block);
  std::size_t bytes = 0;
  for (void* block : freed) bytes += resident_bytes(block, 4 * kMiB);
  EXPECT_LE(bytes, 64 * kMiB);
  void* const again = heap_.allocate(8 * kMiB, 1, true);
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(is_zero(again, 8 * kMiB));
}

TEST_F(HeapTest, AChildThatIsKilledWhileItCopiesDoesNotHoldItsParent) {
  void* const block = heap_.allocate(kMiB, 1, false);
  fill(block, kMiB, 1);
  heap_.before_fork();
  const pid_t pid = fork();
  if (pid == 0) _exit(0);  // ends without the handler, as if it was killed
  heap_.after_fork_in_parent();
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  heap_.release(block);
  // A fork() that fails must not block the parent either.
  void* const again = heap_.allocate(kMiB, 1, false);
  heap_.before_fork();
  heap_.after_fork_in_parent();
  heap_.release(again);
}

TEST_F(HeapTest, ThreadsGetDistinctBlocks) {
  std::vector<std::thread> threads;
  std::vector<int> bad(4, 0);
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, &bad] {
      std::minstd_rand random(t + 1);
      for (std::uint32_t round = 0; round < 300; ++round) {
        const std::size_t bytes = 32 * 1024 + random() % 200'000 / 4 * 4;
        void* const block = heap_.allocate(bytes, 1, false);
        fill(block, bytes, t * 1000 + round);
        HeapSegment segment{};
        if (!heap_.find(block, bytes, segment) || !is_filled(block, bytes, t * 1000 + round)) ++bad[t];
        heap_.release(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace tutti
