// UnixGreetings: the connections that a listening Unix socket accepts, from accept() to their first packet.
//
// All of them are watched at once, so that a connection that stays silent holds up no other one. Connections of other
// users are closed as soon as they are accepted. No call blocks except wait(), which has a time limit, and none loops
// for as long as strangers connect: the caller's loop can look at its deadline on each turn.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <list>
#include <span>

#include "tutti/result.h"

namespace tutti {

class UnixGreetings {
 public:
  // Gets a connection and its first packet. True: it takes the descriptor. False: the descriptor is closed.
  using Admit = std::function<bool(int fd, pid_t process, std::span<const std::byte> packet)>;

  // `listener` is non-blocking and the caller's. `most_silent`: how many silent connections hear() keeps.
  UnixGreetings(int listener, std::size_t most_silent) : listener_(listener), most_silent_(most_silent) {}

  // Errors: kSystem, for example when the process is out of descriptors.
  Status accept_some();
  // Calls `admit` for each connection whose first packet is here. Packets longer than `longest` are never admitted.
  // Of those that are still silent, all but the newest are closed.
  void hear(std::size_t longest, const Admit& admit);
  // Until a connection or a packet arrives, or the time is over.
  void wait(int timeout_ms) const;

 private:
  struct Silent {
    Silent(int given, pid_t sender) : fd(given), process(sender) {}
    ~Silent();
    Silent(const Silent&) = delete;
    Silent& operator=(const Silent&) = delete;
    int fd;
    const pid_t process;
  };
  static bool hear_one(Silent& silent, std::size_t longest, const Admit& admit);

  const int listener_;
  const std::size_t most_silent_;
  std::list<Silent> silent_;  // the oldest first
};

}  // namespace tutti
