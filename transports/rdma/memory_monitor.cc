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

// Between two looks at what the monitor's thread has to do. A thread of a real-time class (SCHED_FIFO) that yields goes
// on at once if the monitor's thread has a lower priority, and could wait for it for ever on its core: it must sleep.
void give_way(int& looks) {
  if (++looks <= kYields) {
    sched_yield();
  } else {
    nanosleep(&kPause, nullptr);
  }
}

// A descriptor that tells of unmapping, moving and discarding; -1 where there is none.
int open_descriptor() {
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  if (fd < 0) fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));  // before Linux 5.11
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
  // Never destroyed: without its thread a process that gives watched memory back would wait for ever.
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
  return getpid() == process ? monitor : nullptr;  // a forked child has no such thread, and its memory is not watched
}

MemoryMonitor::MemoryMonitor(int fd) : fd_(fd), process_(getpid()) {}

// Makes `at` a key.
MemoryMonitor::Watches::iterator MemoryMonitor::split(std::uintptr_t at) {
  const auto next = watches_.upper_bound(at);
  const std::uint32_t before = next == watches_.begin() ? 0 : std::prev(next)->second;
  return watches_.emplace_hint(next, at, before);
}

bool MemoryMonitor::watch(std::uintptr_t begin, std::uintptr_t end) {
  uffdio_register range{};
  range.range = {.start = begin, .len = end - begin};
  // Write protection, of which use is never made: this alone makes no access fault.
  range.mode = UFFDIO_REGISTER_MODE_WP;
  const std::scoped_lock lock(mutex_);
  if (ioctl(fd_, UFFDIO_REGISTER, &range) != 0) return false;
  auto part = split(begin);
  for (const auto last = split(end); part != last; ++part) ++part->second;
  return true;
}

void MemoryMonitor::unwatch(std::uintptr_t begin, std::uintptr_t end) {
  if (getpid() != process_) return;  // a forked child's descriptor is of its parent's memory
  const std::scoped_lock lock(mutex_);
  auto part = split(begin);
  const auto last = split(end);
  for (; part != last; ++part) {
    if (part->second == 0 || --part->second > 0) continue;
    uffdio_range range{.start = part->first, .len = std::next(part)->first - part->first};
    static_cast<void>(ioctl(fd_, UFFDIO_UNREGISTER, &range));  // it may have gone meanwhile
  }
  // Keys that divide nothing go.
  auto key = watches_.lower_bound(begin);
  while (key != watches_.end() && key->first <= end) {
    const std::uint32_t before = key == watches_.begin() ? 0 : std::prev(key)->second;
    key = key->second == before ? watches_.erase(key) : std::next(key);
  }
}

bool MemoryMonitor::gone_since(Cursor& cursor,
                               const std::function<void(std::uintptr_t begin, std::uintptr_t end)>& gone) {
  // Memory may have gone, and been mapped anew by another thread, before the thread has read of it: the kernel refuses
  // to protect anything as long as there is something that was not read. What was read is told when it is not reading.
  uffdio_writeprotect nothing{};
  int looks = 0;
  while (ioctl(fd_, UFFDIO_WRITEPROTECT, &nothing) != 0 && errno == EAGAIN) give_way(looks);
  while (reading_.load(std::memory_order_seq_cst)) give_way(looks);
  const Cursor last = now();
  if (last - cursor > kRemembered / 2) {
    cursor = last;
    return false;
  }
  const Cursor first = cursor;
  for (; cursor < last; ++cursor) {
    const Range& range = ranges_[cursor % kRemembered];
    gone(range.begin.load(std::memory_order_relaxed), range.end.load(std::memory_order_relaxed));
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // the ranges were read before
  return now() - first < kRemembered;                   // none of them was written over meanwhile
}

void MemoryMonitor::tell(std::uintptr_t begin, std::uintptr_t end) {
  const Cursor number = told_.load(std::memory_order_relaxed);
  ranges_[number % kRemembered].begin.store(begin, std::memory_order_relaxed);
  ranges_[number % kRemembered].end.store(end, std::memory_order_relaxed);
  told_.store(number + 1, std::memory_order_release);
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
        tell(message.arg.remove.start, message.arg.remove.end);
      } else if (message.event == UFFD_EVENT_REMAP) {
        tell(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
      }
    }
    reading_.store(false, std::memory_order_release);
  }
}

}  // namespace tutti
