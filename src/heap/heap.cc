#include "heap/heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/system/system_calls.h"

namespace tutti {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kFirstSegmentBytes = std::size_t{64} << 20;
// The limit for the memory of free pages is this, or a quarter of the memory of the blocks if that is more. If free
// pages use more, memory is returned to the system until they use at most half of the limit, or until the system has
// refused too often (kMostFailures in page_table.h). glibc, too, keeps up to 64 MiB: twice the size from which on its
// blocks are mappings of their own, which is at most 32 MiB.
constexpr std::size_t kLeastKeptBytes = std::size_t{64} << 20;

void report(std::string_view text) {
  // Nothing else can be done if stderr cannot be written.
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

// Reads the start of a small file into `buffer`. Returns an empty text if the file cannot be read.
std::string_view read_file(const char* path, std::array<char, 128>& buffer) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t length = read(fd, buffer.data(), buffer.size());
  close(fd);
  return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

std::byte* map_private(std::size_t bytes, int protection) {
  void* data = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

constexpr const char* kFileName = "tutti heap";

}  // namespace

// The destructor sets errno to the value that it had at the construction, because callers expect that malloc(), free()
// and the like do not change errno if they succeed.
class Heap::KeepsErrno {
 public:
  KeepsErrno() = default;
  ~KeepsErrno() { errno = error_; }
  KeepsErrno(const KeepsErrno&) = delete;
  KeepsErrno& operator=(const KeepsErrno&) = delete;

 private:
  int error_ = errno;
};

// Locks the mutex, and disables the cancellation of this thread, because a cancelled thread would never unlock the
// mutex. open(), close() and other functions that the heap calls are cancellation points.
void Heap::lock() {
  int state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  pthread_mutex_lock(&mutex_);
  cancel_state_ = state;
  owner_.store(pthread_self(), std::memory_order_relaxed);
}

void Heap::unlock() {
  const int state = cancel_state_;
  owner_.store(0, std::memory_order_relaxed);
  pthread_mutex_unlock(&mutex_);
  pthread_setcancelstate(state, nullptr);
}

// Holds the mutex while it exists. Its destructor also restores errno.
class Heap::Guard {
 public:
  explicit Guard(Heap& heap) : heap_(heap) { heap_.lock(); }
  ~Guard() { heap_.unlock(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  KeepsErrno keeps_errno_;  // constructed before the lock is taken, and destroyed after it is released
  Heap& heap_;
};

// Returns the reason why the heap cannot be used; null if it can.
const char* Heap::reserve() {
  std::array<char, 128> buffer{};
  if (is_limited(RLIMIT_AS)) return "the address space of the process is limited (ulimit -v)";
  if (is_limited(RLIMIT_DATA)) return "the data of the process is limited (ulimit -d)";
  if (is_limited(RLIMIT_FSIZE)) return "the size of files is limited (ulimit -f), and with it that of shared memory";
  // With this setting, malloc() must fail if the system cannot guarantee the memory. But the system allocates the pages
  // of a memfd only when they are first used, so the program would get SIGBUS at that time.
  if (read_file("/proc/sys/vm/overcommit_memory", buffer).starts_with('2')) return "vm.overcommit_memory is 2";
  const int fd = create_memfd(kFileName);
  if (fd < 0) return "memfd_create failed: a sandbox forbids it, or no descriptor is left";
  close(fd);

  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  page_shift_ = static_cast<unsigned>(std::countr_zero(page));
  const std::size_t wanted = kReservedTimes * static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  pages_ = static_cast<std::uint32_t>(std::min<std::size_t>(wanted, PageTable::kNoPage - 1));
  std::byte* const table = map_private(PageTable::bytes_for(pages_), PROT_READ | PROT_WRITE);
  const std::size_t bytes = std::size_t{pages_} << page_shift_;
  std::byte* const start = table == nullptr ? nullptr : map_private(bytes + kHugePage, PROT_NONE);
  if (start == nullptr) {
    if (table != nullptr) munmap(table, PageTable::bytes_for(pages_));
    return "the addresses could not be reserved";
  }
  table_.create(table, pages_);
  const std::string_view shmem = read_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", buffer);
  huge_pages_ = !shmem.empty() && shmem.find("[never]") == shmem.npos && shmem.find("[deny]") == shmem.npos;
  next_page_ = 1;
  const std::uintptr_t aligned = (reinterpret_cast<std::uintptr_t>(start) + kHugePage - 1) & ~(kHugePage - 1);
  start_.store(aligned, std::memory_order_relaxed);
  reserved_bytes_.store(bytes, std::memory_order_release);
  return nullptr;
}

bool Heap::prepare() {
  if (!prepared_) {
    prepared_ = true;
    problem_.store(reserve(), std::memory_order_relaxed);
  }
  return problem() == nullptr;
}

bool Heap::map_segment(Segment& segment) {
  const std::size_t bytes = std::size_t{segment.range.count} << page_shift_;
  // The program may have set the limit after reserve() has checked it. A memfd beyond the limit would end the process
  // with SIGXFSZ.
  if (is_limited(RLIMIT_FSIZE)) return false;
  const int fd = create_memfd(kFileName);
  struct stat status {};
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0 && seal_size(fd) && fstat(fd, &status) == 0 &&
      mmap(address(segment.range.first), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) {
    if (huge_pages_) madvise(address(segment.range.first), bytes, MADV_HUGEPAGE);
    segment.fd = fd;
    segment.device = status.st_dev;
    segment.inode = status.st_ino;
    return true;
  }
  if (fd >= 0) close(fd);
  return false;
}

bool Heap::add_segment(std::uint32_t least_pages) {
  const std::uint32_t huge = pages_for(kHugePage);
  if (segment_count_.load(std::memory_order_relaxed) == kMostSegments) return false;
  // Leaves out at least one page before each segment. PageTable::add() makes the last of these pages a separator
  // (PageState::kNone).
  const std::uint64_t first = (std::uint64_t{next_page_} + huge) & ~std::uint64_t{huge - 1};
  const std::uint64_t least = (std::uint64_t{least_pages} + huge - 1) & ~std::uint64_t{huge - 1};
  const std::uint64_t usual = std::max<std::uint64_t>({least, pages_for(kFirstSegmentBytes), next_page_});
  for (const std::uint64_t count : {usual, least}) {
    if (first + count >= pages_) continue;
    Segment segment{.range = {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)}};
    if (!map_segment(segment)) continue;
    const std::size_t index = segment_count_.load(std::memory_order_relaxed);
    segments_[index] = segment;
    segment_count_.store(index + 1, std::memory_order_release);
    next_page_ = segment.range.first + segment.range.count;
    table_.add(segment.range);
    return true;
  }
  return false;
}

PageTable::Block Heap::allocate_pages(std::uint32_t pages, std::uint32_t alignment) {
  PageTable::Block block = table_.allocate(pages, alignment);
  if (block.first == PageTable::kNoPage && add_segment(pages + alignment)) block = table_.allocate(pages, alignment);
  return block;
}

void* Heap::allocate(std::size_t bytes, std::size_t alignment, bool zeroed) {
  PageTable::Block block;
  {
    const Guard guard(*this);
    if (!prepare() || bytes > most_bytes() || alignment > kHugePage) return nullptr;
    std::uint32_t alignment_pages = pages_for(alignment);
    const std::uint32_t pages = pages_for(bytes);
    if (huge_pages_ && bytes >= kHugePage) alignment_pages = std::max(alignment_pages, pages_for(kHugePage));
    block = allocate_pages(pages, alignment_pages);
    if (block.first == PageTable::kNoPage) return nullptr;
    used_pages_ += pages;
  }
  if (zeroed && block.dirty_pages > 0) clear(block);
  return address(block.first);
}

// Makes all bytes of the block zero. Only the pages of dirty_range need it. If most pages of this range were never used
// or were returned to the system, they have no memory and are zero already. Writing zeros would give them memory, so in
// this case the memory of all pages of the range is returned to the system, which makes them zero. If that fails, zeros
// are written.
void Heap::clear(const PageTable::Block& block) const {
  const KeepsErrno keeps_errno;
  const PageTable::Range range = block.dirty_range;
  const std::size_t bytes = std::size_t{range.count} << page_shift_;
  const bool mostly_clean = block.dirty_pages < range.count / 2;
  if (!mostly_clean || madvise(address(range.first), bytes, MADV_REMOVE) != 0) {
    std::memset(address(range.first), 0, bytes);
  }
}

std::uint32_t Heap::block_at(const void* data) {
  const std::uint32_t page = page_of(data);
  if (address(page) != data || table_.state(page) != PageState::kFirst) {
    unlock();  // a handler of SIGABRT may allocate memory
    report("tutti heap: free() or realloc() of an address that is not a block: it was freed before, or is wrong\n");
    std::abort();
  }
  return page;
}

// Returns memory of free pages to the system if they use more than the limit (see kLeastKeptBytes).
void Heap::trim() {
  const std::uint32_t most = std::max(pages_for(kLeastKeptBytes), used_pages_ / 4);
  if (table_.dirty_pages() <= most) return;
  table_.clean_extents(most / 2, [this](PageTable::Range extent) {
    return madvise(address(extent.first), std::size_t{extent.count} << page_shift_, MADV_REMOVE) == 0;
  });
}

void Heap::release(void* block) {
  const Guard guard(*this);
  const std::uint32_t first = block_at(block);
  if (segment_of(first)->inherited) {
    madvise(block, std::size_t{table_.length(first)} << page_shift_, MADV_DONTNEED);
    table_.remove(first);
    return;
  }
  used_pages_ -= table_.length(first);
  table_.release(first);
  trim();
}

std::size_t Heap::usable_bytes(const void* block) {
  const Guard guard(*this);
  return std::size_t{table_.length(block_at(block))} << page_shift_;
}

bool Heap::resize(void* block, std::size_t bytes) {
  const Guard guard(*this);
  const std::uint32_t first = block_at(block);
  const std::uint32_t old_pages = table_.length(first);
  if (bytes > most_bytes()) return false;
  const std::uint32_t pages = pages_for(bytes);
  if (segment_of(first)->inherited) return pages <= old_pages;
  if (!table_.resize(first, pages)) return false;
  used_pages_ += pages - old_pages;  // modulo 2^32
  trim();
  return true;
}

const Heap::Segment* Heap::segment_of(std::uint32_t page) const {
  const std::size_t count = segment_count_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    if (page - segments_[i].range.first < segments_[i].range.count) return &segments_[i];
  }
  return nullptr;
}

// Whether the descriptor is still that of the memfd. A program may close all descriptors that it does not know.
bool Heap::owns_descriptor(const Segment& segment) const {
  struct stat status {};
  return fstat(segment.fd, &status) == 0 && status.st_dev == segment.device && status.st_ino == segment.inode;
}

bool Heap::find(const void* data, std::size_t bytes, HeapSegment& found) const {
  if (!contains(data)) return false;
  const std::uint32_t page = page_of(data);
  const Segment* const segment = segment_of(page);
  if (segment == nullptr || segment->inherited || !table_.is_block(page)) return false;
  const HeapSegment result{.start = address(segment->range.first),
                           .bytes = std::size_t{segment->range.count} << page_shift_,
                           .number = static_cast<std::uint32_t>(segment - segments_.data())};
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - result.start);
  if (bytes > result.bytes - offset) return false;
  if (bytes > 0 && !table_.is_block(page_of(static_cast<const std::byte*>(data) + bytes - 1))) return false;
  found = result;
  return true;
}

int Heap::open_segment(std::uint32_t number) {
  const Guard guard(*this);
  if (number >= segment_count_.load(std::memory_order_relaxed)) return -1;
  const Segment& segment = segments_[number];
  if (segment.inherited || !owns_descriptor(segment)) return -1;
  return fcntl(segment.fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

void Heap::before_fork() {
  const char* problem = nullptr;
  const void* const stack = __builtin_frame_address(0);
  if (contains(stack) && !segment_of(page_of(stack))->inherited) {
    // The stack is in shared pages, so both processes would run on the same stack until the child has copied the pages.
    problem = "tutti heap: fork() on a stack that malloc() has allocated is not possible with the shared heap\n";
  } else if (owner_.load(std::memory_order_relaxed) == pthread_self()) {
    problem = "tutti heap: fork() in a signal handler that has interrupted malloc() is not possible\n";
  }
  if (problem != nullptr) {
    report(problem);
    std::abort();
  }
  lock();
  if (used_pages_ == 0) return;  // the child has nothing to copy
  if (pipe2(fork_pipe_.data(), O_CLOEXEC) != 0) fork_pipe_ = {-1, -1};
  for (int& fd : fork_pipe_) fd = above_standard(fd);
  if (fork_pipe_[0] < 0 || fork_pipe_[1] < 0) {
    close_fork_pipe();
    report("tutti heap: no descriptor is left, so fork() cannot wait until the child has copied the blocks\n");
  }
}

void Heap::close_fork_pipe() {
  for (int& fd : fork_pipe_) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
}

void Heap::after_fork_in_parent() {
  if (fork_pipe_[0] >= 0) {
    close(fork_pipe_[1]);
    fork_pipe_[1] = -1;
    // Waits for the byte of the child, or for the end of file if there is no child (fork() failed) or it has ended.
    const KeepsErrno keeps_errno;  // that of fork()
    char byte = 0;
    while (read(fork_pipe_[0], &byte, 1) < 0 && errno == EINTR) {
    }
    close_fork_pipe();
  }
  unlock();
}

// Copies the `bytes` bytes at `offset` of a segment to `copy`. Reads them from the memfd, because the program may have
// made pages of the mapping inaccessible with mprotect(). If the descriptor is lost or a read fails, reads the rest
// from the mapping.
void Heap::copy_data(const Segment& segment, off_t offset, std::byte* copy, std::size_t bytes) const {
  while (segment.fd >= 0 && bytes > 0) {
    const ssize_t done = pread(segment.fd, copy, bytes, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) break;
    offset += done;
    copy += done;
    bytes -= static_cast<std::size_t>(done);
  }
  if (bytes > 0) std::memcpy(copy, address(segment.range.first) + offset, bytes);
}

// Replaces the shared pages of the segment by private ones, which get the contents of the blocks. Returns false if no
// addresses or mappings are left.
bool Heap::copy_blocks(Segment& segment) {
  const std::size_t bytes = std::size_t{segment.range.count} << page_shift_;
  std::byte* const start = address(segment.range.first);
  std::byte* const copy = map_private(bytes, PROT_READ | PROT_WRITE);
  if (copy == nullptr) return false;
  if (!owns_descriptor(segment)) segment.fd = -1;
  const bool has_file = segment.fd >= 0;
  const std::uint32_t end = segment.range.first + segment.range.count;
  for (std::uint32_t page = segment.range.first; page < end; page += table_.length(page)) {
    if (!table_.is_block(page)) continue;
    auto next = static_cast<off_t>(address(page) - start);
    const off_t behind = next + static_cast<off_t>(std::size_t{table_.length(page)} << page_shift_);
    while (next < behind) {
      // Skips pages that have no memory (never used, or returned to the system). A copy would allocate memory for the
      // child's page, and reading it in the mapping would allocate memory for the file's page. If the kernel cannot
      // report which pages these are, all are copied.
      const off_t data = has_file ? lseek(segment.fd, next, SEEK_DATA) : next;
      if (data >= behind || (data < 0 && errno == ENXIO)) break;
      const off_t from = std::max(data, next);
      const off_t hole = data >= 0 && has_file ? lseek(segment.fd, from, SEEK_HOLE) : behind;
      const off_t to = hole > from ? std::min(hole, behind) : behind;
      copy_data(segment, from, copy + from, static_cast<std::size_t>(to - from));
      next = to;
    }
  }
  if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, start) == MAP_FAILED) return false;
  if (has_file) close(segment.fd);
  segment.fd = -1;
  segment.inherited = true;
  return true;
}

void Heap::after_fork_in_child() {
  for (std::size_t i = 0; i < segment_count_; ++i) {
    if (segments_[i].inherited || copy_blocks(segments_[i])) continue;
    report("tutti heap: no addresses are left for the child's copy of its parent's blocks, so the child ends\n");
    _exit(127);
  }
  used_pages_ = 0;
  table_.drop_free_extents();
  if (fork_pipe_[0] >= 0) {
    // The reading end is still open here. So the child gets no SIGPIPE, even if its parent has ended. If the write
    // fails, the parent continues when the child has closed its end of the pipe.
    if (write(fork_pipe_[1], "", 1) != 1) report("tutti heap: the parent of a fork() could not be told to go on\n");
    close_fork_pipe();
  }
  mutex_ = PTHREAD_MUTEX_INITIALIZER;
  owner_.store(0, std::memory_order_relaxed);
  pthread_setcancelstate(cancel_state_, nullptr);
}

}  // namespace tutti
