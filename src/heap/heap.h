// Heap: serves large blocks of memory from memfds, so that the other ranks of a machine can map them (docs/heap.md). It
// is the shared heap of a process that has loaded libtutti_heap.so: behind malloc() if the library was loaded at the
// start of the program (LD_PRELOAD), otherwise only behind the arrays of NumPy. interpose.cc defines malloc() and the
// other functions.
//
// The heap reserves a range of addresses, and fills it with segments from the lower end. A segment is one memfd. Each
// segment is at least as large as all segments before it together, so that there are few. (If too few addresses are
// left for that, or the system refuses so large a segment, the segment is only about as large as the requested block.)
// The pages of a segment use no memory until the program reads or writes them or, with huge pages, their neighbours. A
// block is a run of pages in a segment. Free pages keep their memory until there are too many of them.
//
// After fork(), parent and child must not see each other's writes. So the child copies all blocks to private memory
// inside fork(), in a handler of pthread_atfork(), and the thread that has called fork() waits until that is done (if a
// pipe for this can be created). The child's new blocks come from new segments.
//
// Thread-safe. There is one object in a process. It is never destroyed, because other libraries free memory until the
// process ends. It does not use malloc() or any function that could. If it cannot serve a block, it returns null, and
// the caller must use another allocator. It writes to stderr only before it ends the process, or if something is wrong
// in fork().
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "heap/heap_interface.h"
#include "heap/page_table.h"

namespace tutti {

class Heap {
 public:
  constexpr Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Allocates a block of `bytes` > 0 bytes, filled with zeros if `zeroed`. It starts at a multiple of `alignment`, a
  // power of two, and of the page size. Null if the heap cannot serve it.
  void* allocate(std::size_t bytes, std::size_t alignment, bool zeroed);
  // Whether `data` is an address in the range of the heap.
  bool contains(const void* data) const {
    // reserved_bytes_ is 0 until the addresses are reserved. start_ is stored before it.
    const std::size_t bytes = reserved_bytes_.load(std::memory_order_acquire);
    return reinterpret_cast<std::uintptr_t>(data) - start_.load(std::memory_order_relaxed) < bytes;
  }
  // release(), usable_bytes() and resize() end the process with a message if `block` is not the address of a block.
  void release(void* block);
  std::size_t usable_bytes(const void* block);
  // Changes the size of a block to `bytes` > 0 without moving it. Returns false if that is not possible.
  bool resize(void* block, std::size_t bytes);

  // See HeapInterface.
  bool find(const void* data, std::size_t bytes, HeapSegment& segment) const;
  int open_segment(std::uint32_t number);
  const char* problem() const { return problem_.load(std::memory_order_relaxed); }

  // Handlers for pthread_atfork().
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  class KeepsErrno;
  class Guard;
  struct Segment {
    PageTable::Range range;
    int fd = -1;
    // `device` and `inode` identify the memfd. The program may close `fd`, and the number may then be that of another
    // file.
    dev_t device = 0;
    ino_t inode = 0;
    bool inherited =
        false;  // from before a fork: its blocks are private copies of the parent's. Set in after_fork_in_child() only
  };
  static constexpr std::size_t kMostSegments = 64;
  // The reserved addresses as a multiple of the machine's memory: more than one, because fragmentation can make a part
  // of them useless.
  static constexpr std::size_t kReservedTimes = 4;

  // The greatest size of a block in bytes: about the memory of the machine; 0 before reserve(). Larger blocks come from
  // the next allocator (interpose.cc).
  std::size_t most_bytes() const { return reserved_bytes_.load(std::memory_order_relaxed) / kReservedTimes; }
  void lock();  // also disables the cancellation of this thread until unlock()
  void unlock();
  bool prepare();  // reserves the addresses, once; false: the heap cannot be used
  const char* reserve();
  bool add_segment(std::uint32_t least_pages);
  bool map_segment(Segment& segment);
  PageTable::Block allocate_pages(std::uint32_t pages, std::uint32_t alignment);
  void clear(const PageTable::Block& block) const;
  void trim();
  const Segment* segment_of(std::uint32_t page) const;
  bool owns_descriptor(const Segment& segment) const;
  bool copy_blocks(Segment& segment);
  void copy_data(const Segment& segment, off_t offset, std::byte* copy, std::size_t bytes) const;
  void close_fork_pipe();

  std::byte* address(std::uint32_t page) const {
    return reinterpret_cast<std::byte*>(start_.load(std::memory_order_relaxed)) + (std::size_t{page} << page_shift_);
  }
  std::uint32_t page_of(const void* data) const {
    return static_cast<std::uint32_t>(
        (reinterpret_cast<std::uintptr_t>(data) - start_.load(std::memory_order_relaxed)) >> page_shift_);
  }
  std::uint32_t block_at(const void* data);  // the first page of the block at `data`; ends the process if there is none
  std::uint32_t pages_for(std::size_t bytes) const {
    return static_cast<std::uint32_t>((bytes + (std::size_t{1} << page_shift_) - 1) >> page_shift_);
  }

  // Protects all members below, with two exceptions. The atomic members, and page_shift_ after the addresses were
  // reserved, may be read without it. find() and before_fork() also read the segments below segment_count_ without it,
  // and find() the states of pages.
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<pthread_t> owner_{0};  // the thread that has locked the mutex; 0: none
  int cancel_state_ = 0;             // the cancel state of that thread before it locked the mutex
  bool prepared_ = false;
  std::atomic<const char*> problem_{nullptr};
  std::atomic<std::uintptr_t> start_{0};  // address of the reserved range
  std::atomic<std::size_t> reserved_bytes_{0};
  unsigned page_shift_ = 12;
  bool huge_pages_ = false;       // the kernel has huge pages for shared memory
  std::uint32_t pages_ = 0;       // number of pages in the reserved range
  std::uint32_t next_page_ = 0;   // the first page behind the segments
  std::uint32_t used_pages_ = 0;  // number of pages in blocks that are not from before a fork
  PageTable table_;
  std::array<Segment, kMostSegments> segments_{};
  std::atomic<std::size_t> segment_count_{0};  // segments with lower numbers may be read without the mutex
  std::array<int, 2> fork_pipe_{-1, -1};       // during fork(): the child writes a byte when it has copied the blocks
};

}  // namespace tutti
