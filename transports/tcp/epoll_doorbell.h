// EpollDoorbell: sleeping until one of many sockets has something new, or somebody rings.
//
// Sockets are watched edge-triggered and once for all, so a wait costs no set-up. arm() forgets the edges of the past,
// whose data the caller then polls once more; what comes later is an edge that sleep() returns at. That holds as long
// as a poll reads a socket until it is empty or its caller has what it wanted.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "transports/poll_doorbell.h"
#include "transports/tcp/socket.h"

namespace tutti {

class EpollDoorbell final : public PollDoorbell {
 public:
  static Result<std::unique_ptr<EpollDoorbell>> create();
  void arm() override;
  void disarm() override;
  void sleep(std::int64_t timeout_ns) override;
  void ring() override;
  void stay_awake();  // by what add_armed() has named: the next sleep() ends at once

  // Watches the socket `fd` from now on, until it is closed. If the system is short of memory or of watches, arm()
  // tries again, and until then sleep() returns early, so that the caller looks at the socket by itself. Thread-safe.
  void watch(int fd);
  // One more thing that ends a sleep: `fd` is watched until it is closed.
  Status add_wait_source(int fd) override;
  // A source that stays ready until `service` has been called, which sleep() does before it returns.
  Status add_serviced(int fd, std::function<void()> service);
  // Called by every arm(): for sources that must be armed themselves, or forget what they had to tell so far.
  void add_armed(std::function<void()> arm) { armed_too_.push_back(std::move(arm)); }

 private:
  struct Unwatched {  // a socket; its number may be another file's by now
    int fd;
    dev_t device;
    ino_t inode;
    bool operator==(const Unwatched&) const = default;
  };

  EpollDoorbell(Socket epoll, Socket event) : epoll_(std::move(epoll)), event_(std::move(event)) {}
  void look(int timeout_ms);
  bool try_to_watch(int fd);
  void watch_again();
  static Unwatched file_of(int fd);

  Socket epoll_;
  Socket event_;  // an eventfd, for ring()
  std::atomic<bool> armed_ = false;
  std::function<void()> service_;
  std::vector<std::function<void()>> armed_too_;
  std::mutex mutex_;                     // guards unwatched_
  std::vector<Unwatched> unwatched_;     // sockets that the system has refused to watch
  std::atomic<bool> sees_less_ = false;  // there are some
};

}  // namespace tutti
