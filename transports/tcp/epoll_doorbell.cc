#include "transports/tcp/epoll_doorbell.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "transports/shm/mapping.h"

namespace tutti {
namespace {
constexpr int kEventsAtOnce = 64;
constexpr int kLooks = 64;    // system calls after which arm() gives up forgetting: a needless wake is harmless
constexpr int kBlindMs = 10;  // longest sleep while there is a socket that cannot be watched
enum Source : std::uint64_t { kSocket = 0, kRing = 1, kServiced = 2 };
}  // namespace

Result<std::unique_ptr<EpollDoorbell>> EpollDoorbell::create() {
  Socket epoll(above_standard(epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll.is_open()) return socket_error("epoll_create1", errno);
  Socket event(above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (!event.is_open()) return socket_error("eventfd", errno);
  epoll_event ring{.events = EPOLLIN | EPOLLET, .data = {.u64 = kRing}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &ring) != 0) return socket_error("epoll_ctl", errno);
  return std::unique_ptr<EpollDoorbell>(new EpollDoorbell(std::move(epoll), std::move(event)));  // private constructor
}

bool EpollDoorbell::try_to_watch(int fd) {
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.u64 = kSocket}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST;
}

void EpollDoorbell::watch(int fd) {
  if (try_to_watch(fd)) return;
  const std::scoped_lock lock(mutex_);
  unwatched_.push_back(file_of(fd));
  sees_less_.store(true, std::memory_order_relaxed);
}

EpollDoorbell::Unwatched EpollDoorbell::file_of(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return {.fd = fd, .device = 0, .inode = 0};
  return {.fd = fd, .device = about.st_dev, .inode = about.st_ino};
}

void EpollDoorbell::watch_again() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(unwatched_, [this](const Unwatched& socket) {
    return file_of(socket.fd) != socket || try_to_watch(socket.fd);  // closed since, or watched now
  });
  sees_less_.store(!unwatched_.empty(), std::memory_order_relaxed);
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

void EpollDoorbell::look(int timeout_ms) {
  std::array<epoll_event, kEventsAtOnce> events{};
  bool service = false;
  int count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, timeout_ms);
  for (int looks = 1; count > 0; ++looks) {
    service |= std::any_of(events.begin(), events.begin() + count,
                           [](const epoll_event& event) { return event.data.u64 == kServiced; });
    if (count < kEventsAtOnce || looks == kLooks) break;
    count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, 0);
  }
  if (service && service_) service_();
}

void EpollDoorbell::arm() {
  if (sees_less_.load(std::memory_order_relaxed)) watch_again();
  look(0);
  for (const auto& arm : armed_too_) arm();
  armed_.store(true, std::memory_order_seq_cst);  // pairs with ring(): one of the two sees the other
}

void EpollDoorbell::disarm() { armed_.store(false, std::memory_order_relaxed); }

void EpollDoorbell::sleep(std::int64_t timeout_ns) {
  const auto timeout_ms = static_cast<int>((std::max<std::int64_t>(timeout_ns, 0) + 999'999) / 1'000'000);
  look(sees_less_.load(std::memory_order_relaxed) ? std::min(timeout_ms, kBlindMs) : timeout_ms);
  armed_.store(false, std::memory_order_relaxed);
}

void EpollDoorbell::ring() {
  if (armed_.load(std::memory_order_seq_cst)) stay_awake();
}

void EpollDoorbell::stay_awake() {
  const std::uint64_t one = 1;
  // A full counter has rung already.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
}

}  // namespace tutti
