// EpollDoorbell: sleeps until one of many sockets has new events, until a thread rings, or until a timeout.
//
// Sockets are watched edge-triggered and are registered once, so a sleep needs no set-up. arm() discards the events up
// to now, and the caller then polls the sockets once more. Any later event ends sleep(). If a poll leaves data unread
// that arrived before arm(), that data does not end the sleep. So the caller must read a socket until it is empty, or
// until it has found the data that it waits for.
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
  void stay_awake();  // makes the next sleep() end at once; for the functions that are passed to add_armed()

  // Watches the socket `fd` from now on, until it is closed. If the system refuses, for example because it has not
  // enough memory or watches, arm() tries again. Until that succeeds, sleep() returns early, so that the caller polls
  // the socket itself. Thread-safe.
  void watch(int fd);
  // Adds a descriptor of another source. A sleep ends when new data makes the descriptor readable. It is watched
  // edge-triggered until it is closed.
  Status add_wait_source(int fd) override;
  // Adds a descriptor that stays readable until `service` is called. If it is readable, sleep() and arm() call
  // `service` before they return. A doorbell can have only one such descriptor.
  Status add_serviced(int fd, std::function<void()> service);
  // Adds a function that every arm() calls: for sources of wake-ups that must be armed themselves, or must discard
  // earlier events.
  void add_armed(std::function<void()> arm) { armed_too_.push_back(std::move(arm)); }

 private:
  // A socket that could not be watched. Contains the inode, because the descriptor number may belong to another file by
  // now.
  struct Unwatched {
    int fd;
    dev_t device;
    ino_t inode;
    bool operator==(const Unwatched&) const = default;
  };

  EpollDoorbell(Socket epoll, Socket event) : epoll_(std::move(epoll)), event_(std::move(event)) {}
  void wait_and_consume(int timeout_ms);
  bool try_to_watch(int fd);
  void watch_again();
  static Unwatched file_of(int fd);

  Socket epoll_;
  Socket event_;  // an eventfd, for ring()
  std::atomic<bool> armed_ = false;
  std::function<void()> service_;
  std::vector<std::function<void()>> armed_too_;
  std::mutex mutex_;                         // guards unwatched_
  std::vector<Unwatched> unwatched_;         // sockets that the system has refused to watch
  std::atomic<bool> has_unwatched_ = false;  // unwatched_ is not empty; read without the lock
};

}  // namespace tutti
