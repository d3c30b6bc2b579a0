// MemoryMonitor: tells when memory of this process is given back to the system or gets other pages (munmap, mremap,
// madvise, a heap that shrinks), whoever does it, before the call that does so returns. For what is remembered of
// memory by its address, such as registrations with a network card.
//
// By userfaultfd: the kernel holds such a call until this monitor's thread has read of it. The thread takes no lock and
// never allocates, so that it can't wait for who waits for it. One per process, which lives as long as the process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tutti {

class MemoryMonitor {
 public:
  using Cursor = std::uint64_t;

  // Null where the system has none or does not permit it (seccomp in some containers). Thread-safe.
  static std::shared_ptr<MemoryMonitor> shared();

  // From now on the end of memory in [begin, end), whole pages, is told. False: of this kind of memory it cannot be.
  // Thread-safe.
  bool watch(std::uintptr_t begin, std::uintptr_t end);
  // Of a range that was watched for one user of this monitor alone. Thread-safe.
  void unwatch(std::uintptr_t begin, std::uintptr_t end);
  // Those who remember memory: with several, what one forgets may be another's, and stays watched.
  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }
  void remove_user() { users_.fetch_sub(1, std::memory_order_relaxed); }
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

  explicit MemoryMonitor(int fd) : fd_(fd) {}
  void run();
  void tell(std::uintptr_t begin, std::uintptr_t end);

  const int fd_;
  std::atomic<int> users_ = 0;
  std::atomic<bool> reading_ = false;  // something may have been read that is not told yet
  std::atomic<Cursor> told_ = 0;       // ranges, ever
  std::array<Range, kRemembered> ranges_{};
};

}  // namespace tutti
