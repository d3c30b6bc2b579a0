// MemoryMonitor: reports which watched memory of this process was returned to the operating system or has got different
// pages (munmap, mremap, madvise, a heap that shrinks), whichever code did it. As soon as the system call that did it
// has returned, gone_since() reports that memory. Caches that identify memory by its address need the reports, for
// example those of registrations with a network card.
//
// It is implemented with userfaultfd: the kernel delays such a system call until the thread of this monitor has read
// the event. The thread takes no lock and never allocates memory. Otherwise it could wait for a thread that waits
// for it. There is at most one monitor per process, and it exists until the process ends.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace tutti {

class MemoryMonitor {
 public:
  using Cursor = std::uint64_t;  // a position in the sequence of ended ranges: the number of ranges before it

  // Returns null if the system does not support userfaultfd or does not permit it (seccomp in some containers), if no
  // thread could be started for it, or in a child that was forked after the first call. Thread-safe.
  static std::shared_ptr<MemoryMonitor> shared();

  // Starts to report when memory in [begin, end) is returned or gets other pages ("ends"). `begin` and `end` must be
  // page boundaries. Returns false if the memory cannot be watched, for example because of its type. Thread-safe.
  bool watch(std::uintptr_t begin, std::uintptr_t end);
  // Revokes one call of watch() with the same range. Memory that no other watch() covers is not reported any more
  // and causes no more cost in the kernel. The memory may already be unmapped. Thread-safe.
  void unwatch(std::uintptr_t begin, std::uintptr_t end);
  // The cursor for gone_since() that excludes everything recorded until now.
  Cursor now() const { return recorded_.load(std::memory_order_acquire); }
  // Calls `gone` for each range that ended since `cursor`, and advances the cursor. Everything that ended before
  // this call is included. Returns false if too many ranges have ended to report each of them; then any memory may
  // have ended. Thread-safe, if each caller has its own cursor.
  bool gone_since(Cursor& cursor, const std::function<void(std::uintptr_t begin, std::uintptr_t end)>& gone);

 private:
  struct Range {
    std::atomic<std::uintptr_t> begin;
    std::atomic<std::uintptr_t> end;
  };
  static constexpr std::size_t kMaxRecorded = 4096;

  // Each key begins a range that extends to the next key. The value is the number of watches that cover the range.
  // Addresses before the first key are covered by none.
  using Watches = std::map<std::uintptr_t, std::uint32_t>;

  explicit MemoryMonitor(int fd);
  void run();
  void record(std::uintptr_t begin, std::uintptr_t end);
  Watches::iterator split(std::uintptr_t at);

  const int fd_;
  const pid_t process_;
  // Never taken by the monitor's thread: a thread that holds the mutex may return memory, and then waits for the
  // monitor's thread.
  std::mutex mutex_;
  Watches watches_;                    // guarded by mutex_
  std::atomic<bool> reading_ = false;  // events may have been read that are not recorded yet
  std::atomic<Cursor> recorded_ = 0;   // number of ranges recorded so far
  std::array<Range, kMaxRecorded> ranges_{};
};

}  // namespace tutti
