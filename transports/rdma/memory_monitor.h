// MemoryMonitor: tells when memory of this process is given back to the system or gets other pages (munmap, mremap,
// madvise, a heap that shrinks), whoever does it, before the call that does so returns. For what is remembered of
// memory by its address, such as registrations with a network card.
//
// By userfaultfd: the kernel holds such a call until this monitor's thread has read of it. The thread takes no lock and
// never allocates, so that it can't wait for who waits for it. One per process, which lives as long as the process.
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
  using Cursor = std::uint64_t;

  // Null where the system has none or does not permit it (seccomp in some containers). Thread-safe.
  static std::shared_ptr<MemoryMonitor> shared();

  // From now on the end of memory in [begin, end), whole pages, is told. False: of this kind of memory it cannot be.
  // Thread-safe.
  bool watch(std::uintptr_t begin, std::uintptr_t end);
  // Takes one watch() of that very range back: what no other one covers is told of no longer, and costs the system no
  // more. Also of memory that has gone meanwhile. Thread-safe.
  void unwatch(std::uintptr_t begin, std::uintptr_t end);
  Cursor now() const { return told_.load(std::memory_order_acquire); }
  // Calls `gone` for what has ended since `cursor`, which moves on. What has ended before this call was made is among
  // it. False: so much has that not all can be told. Thread-safe.
  bool gone_since(Cursor& cursor, const std::function<void(std::uintptr_t begin, std::uintptr_t end)>& gone);

 private:
  struct Range {
    std::atomic<std::uintptr_t> begin;
    std::atomic<std::uintptr_t> end;
  };
  static constexpr std::size_t kRemembered = 4096;

  // Of [the key, next]: how many watches cover it. What no key is at or before has none.
  using Watches = std::map<std::uintptr_t, std::uint32_t>;

  explicit MemoryMonitor(int fd);
  void run();
  void tell(std::uintptr_t begin, std::uintptr_t end);
  Watches::iterator split(std::uintptr_t at);

  const int fd_;
  const pid_t process_;
  std::mutex mutex_;                   // never taken by the thread, which all wait for who give memory back
  Watches watches_;                    // guarded by it
  std::atomic<bool> reading_ = false;  // something may have been read that is not told yet
  std::atomic<Cursor> told_ = 0;       // ranges, ever
  std::array<Range, kRemembered> ranges_{};
};

}  // namespace tutti
