#include "transports/tcp/epoll_doorbell.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "base/system/system_calls.h"

namespace tutti {
namespace {
constexpr int kEventsAtOnce = 64;
// Maximum number of epoll_wait() calls in one call of wait_and_consume(). If old events remain, the next sleep ends
// early, which does no harm.
constexpr int kMaxDiscardCalls = 64;
constexpr int kUnwatchedPollMs = 10;  // longest sleep while there is a socket that cannot be watched
enum Source : std::uint64_t { kSocket = 0, kRing = 1, kServiced = 2 };
}  // namespace

Result<std::unique_ptr<EpollDoorbell>> EpollDoorbell::create() {
  Socket epoll(above_standard(epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll.is_open()) return socket_error("epoll_create1", errno);
  Socket event(above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (!event.is_open()) return socket_error("eventfd", errno);
  epoll_event ring{.events = EPOLLIN | EPOLLET, .data = {.u64 = kRing}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &ring) != 0) return socket_error("epoll_ctl", errno);
  // The constructor is private.
  return std::unique_ptr<EpollDoorbell>(new EpollDoorbell(std::move(epoll), std::move(event)));
}

bool EpollDoorbell::try_to_watch(int fd) {
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.u64 = kSocket}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST;
}

void EpollDoorbell::watch(int fd) {
  if (try_to_watch(fd)) return;
  const std::scoped_lock lock(mutex_);
  unwatched_.push_back(file_of(fd));
  has_unwatched_.store(true, std::memory_order_relaxed);
}

EpollDoorbell::Unwatched EpollDoorbell::file_of(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return {.fd = fd, .device = 0, .inode = 0};
  return {.fd = fd, .device = about.st_dev, .inode = about.st_ino};
}

void EpollDoorbell::watch_again() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(unwatched_, [this](const Unwatched& socket) {
    // The socket is removed from the list if it was closed meanwhile, or if it can be watched now.
    return file_of(socket.fd) != socket || try_to_watch(socket.fd);
  });
  has_unwatched_.store(!unwatched_.empty(), std::memory_order_relaxed);
}

Status EpollDoorbell::add_wait_source(int fd) {
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = kSocket}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? Status() : socket_error("epoll_ctl", errno);
}

Status EpollDoorbell::add_serviced(int fd, std::function<void()> service) {
  service_ = std::move(service);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kServiced}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? Status() : socket_error("epoll_ctl", errno);
}

// Waits for events and consumes them. Calls the service function if its source is ready.
void EpollDoorbell::wait_and_consume(int timeout_ms) {
  std::array<epoll_event, kEventsAtOnce> events{};
  bool service = false;
  int count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, timeout_ms);
  for (int looks = 1; count > 0; ++looks) {
    service |= std::any_of(events.begin(), events.begin() + count,
                           [](const epoll_event& event) { return event.data.u64 == kServiced; });
    if (count < kEventsAtOnce || looks == kMaxDiscardCalls) break;
    count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, 0);
  }
  if (service && service_) service_();
}

void EpollDoorbell::arm() {
  if (has_unwatched_.load(std::memory_order_relaxed)) watch_again();
  wait_and_consume(0);
  for (const auto& arm : armed_too_) arm();
  // This store is seq_cst, like the load in ring(), so that either ring() sees it, or the poll after arm() sees the
  // data of the ringing thread.
  armed_.store(true, std::memory_order_seq_cst);
}

void EpollDoorbell::disarm() { armed_.store(false, std::memory_order_relaxed); }

void EpollDoorbell::sleep(std::int64_t timeout_ns) {
  const auto timeout_ms = static_cast<int>((std::max<std::int64_t>(timeout_ns, 0) + 999'999) / 1'000'000);
  wait_and_consume(has_unwatched_.load(std::memory_order_relaxed) ? std::min(timeout_ms, kUnwatchedPollMs)
                                                                  : timeout_ms);
  armed_.store(false, std::memory_order_relaxed);
}

void EpollDoorbell::ring() {
  if (armed_.load(std::memory_order_seq_cst)) stay_awake();
}

void EpollDoorbell::stay_awake() {
  const std::uint64_t one = 1;
  // The counter is never read. The write fails only when the counter is full, after almost 2^64 rings.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
}

}  // namespace tutti
