#include "transports/rdma/memory_monitor.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>

#include "base/thread.h"

namespace tutti {
namespace {

#ifndef UFFD_USER_MODE_ONLY
constexpr int UFFD_USER_MODE_ONLY = 1;
#endif

constexpr int kYields = 100;
constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 50'000};

// Waits between two checks of the progress of the monitor's thread. Yielding alone is not enough: if a thread of a
// real-time class (SCHED_FIFO) yields, and the monitor's thread has a lower priority on the same core, then the
// yielding thread continues at once and could wait forever. So it sleeps after a few checks.
void back_off(int& checks) {
  if (++checks <= kYields) {
    sched_yield();
  } else {
    nanosleep(&kPause, nullptr);
  }
}

// Returns a descriptor that reports unmapping, moving and discarding of memory; -1 if that is not supported or not
// permitted.
int open_descriptor() {
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  if (fd < 0) fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));  // Linux < 5.11 refuses the flag
  if (fd < 0) return -1;
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
  if (ioctl(fd, UFFDIO_API, &api) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

std::shared_ptr<MemoryMonitor> MemoryMonitor::shared() {
  static const pid_t process = getpid();
  // Never destroyed: without the monitor's thread, a thread that returns watched memory would wait forever.
  static auto& monitor = *new std::shared_ptr<MemoryMonitor>([]() -> std::shared_ptr<MemoryMonitor> {
    const int fd = open_descriptor();
    if (fd < 0) return nullptr;
    std::shared_ptr<MemoryMonitor> made(new MemoryMonitor(fd));  // private constructor
    try {
      start_thread([made] { made->run(); }).detach();
    } catch (const std::system_error&) {
      close(fd);
      made = nullptr;
    }
    return made;
  }());
  // A forked child does not have the monitor's thread, and its memory is not watched.
  return getpid() == process ? monitor : nullptr;
}

MemoryMonitor::MemoryMonitor(int fd) : fd_(fd), process_(getpid()) {}

// Makes `at` a key, so that a range begins there.
MemoryMonitor::Watches::iterator MemoryMonitor::split(std::uintptr_t at) {
  const auto next = watches_.upper_bound(at);
  const std::uint32_t before = next == watches_.begin() ? 0 : std::prev(next)->second;
  return watches_.emplace_hint(next, at, before);
}

bool MemoryMonitor::watch(std::uintptr_t begin, std::uintptr_t end) {
  uffdio_register range{};
  range.range = {.start = begin, .len = end - begin};
  // Write protection is requested because the mode must not be empty, but no page is ever protected. This mode alone
  // does not cause page faults.
  range.mode = UFFDIO_REGISTER_MODE_WP;
  const std::scoped_lock lock(mutex_);
  if (ioctl(fd_, UFFDIO_REGISTER, &range) != 0) return false;
  auto part = split(begin);
  for (const auto last = split(end); part != last; ++part) ++part->second;
  return true;
}

void MemoryMonitor::unwatch(std::uintptr_t begin, std::uintptr_t end) {
  if (getpid() != process_) return;  // the descriptor of a forked child refers to the memory of its parent
  const std::scoped_lock lock(mutex_);
  auto part = split(begin);
  const auto last = split(end);
  for (; part != last; ++part) {
    if (part->second == 0 || --part->second > 0) continue;
    uffdio_range range{.start = part->first, .len = std::next(part)->first - part->first};
    static_cast<void>(ioctl(fd_, UFFDIO_UNREGISTER, &range));  // can fail if the memory was unmapped meanwhile
  }
  // Remove keys that separate two ranges with equal counts.
  auto key = watches_.lower_bound(begin);
  while (key != watches_.end() && key->first <= end) {
    const std::uint32_t before = key == watches_.begin() ? 0 : std::prev(key)->second;
    key = key->second == before ? watches_.erase(key) : std::next(key);
  }
}

bool MemoryMonitor::gone_since(Cursor& cursor,
                               const std::function<void(std::uintptr_t begin, std::uintptr_t end)>& gone) {
  // Memory may have been unmapped, and even mapped again by another thread, before the monitor's thread has read the
  // event. The kernel refuses to protect anything (EAGAIN) while it has unread events, so the first loop waits until
  // all events are read. The second loop waits until the events that were read are recorded.
  uffdio_writeprotect nothing{};
  int checks = 0;
  while (ioctl(fd_, UFFDIO_WRITEPROTECT, &nothing) != 0 && errno == EAGAIN) back_off(checks);
  while (reading_.load(std::memory_order_seq_cst)) back_off(checks);
  const Cursor last = now();
  if (last - cursor > kMaxRecorded / 2) {
    cursor = last;
    return false;
  }
  const Cursor first = cursor;
  for (; cursor < last; ++cursor) {
    const Range& range = ranges_[cursor % kMaxRecorded];
    gone(range.begin.load(std::memory_order_relaxed), range.end.load(std::memory_order_relaxed));
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // so that the ranges above are read before now() below
  return now() - first < kMaxRecorded;                  // true if no range that was read above has been overwritten
}

void MemoryMonitor::record(std::uintptr_t begin, std::uintptr_t end) {
  const Cursor number = recorded_.load(std::memory_order_relaxed);
  ranges_[number % kMaxRecorded].begin.store(begin, std::memory_order_relaxed);
  ranges_[number % kMaxRecorded].end.store(end, std::memory_order_relaxed);
  recorded_.store(number + 1, std::memory_order_release);
}

void MemoryMonitor::run() {
  while (true) {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, -1) < 0) continue;
    if ((waiting.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return;
    reading_.store(true, std::memory_order_seq_cst);
    uffd_msg message{};
    while (read(fd_, &message, sizeof(message)) == static_cast<ssize_t>(sizeof(message))) {
      if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
        record(message.arg.remove.start, message.arg.remove.end);
      } else if (message.event == UFFD_EVENT_REMAP) {
        record(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
      }
    }
    reading_.store(false, std::memory_order_release);
  }
}

}  // namespace tutti
