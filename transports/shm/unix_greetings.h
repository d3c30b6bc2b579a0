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
#include <utility>

#include "transports/shm/owned_descriptor.h"
#include "tutti/result.h"

namespace tutti {

class UnixGreetings {
 public:
  // Gets a connection and its first packet. True: it takes the descriptor. False: the descriptor is closed.
  using Admit = std::function<bool(int fd, pid_t process, std::span<const std::byte> packet)>;

  // `listener` is non-blocking and the caller's. `most_silent`: how many silent connections hear() keeps. `longest`: in
  // bytes; longer packets are never admitted.
  UnixGreetings(int listener, std::size_t most_silent, std::size_t longest, Admit admit)
      : listener_(listener), most_silent_(most_silent), longest_(longest), admit_(std::move(admit)) {}

  // If the system has no descriptor or no memory for a connection, the one that has been silent longest makes room.
  // Errors: kSystem if there is none.
  Status accept_some();
  // Calls `admit` for each connection whose first packet is here. Then closes the connections that have been silent
  // longest, until `most_silent` are left.
  void hear();
  // Until a connection or a packet arrives, or the time is over.
  void wait(int timeout_ms) const;

 private:
  struct Silent {
    OwnedDescriptor fd;
    pid_t process;
  };
  bool hear_one(Silent& silent);
  void drop_oldest();
  bool make_room();

  const int listener_;
  const std::size_t most_silent_;
  const std::size_t longest_;
  const Admit admit_;
  std::list<Silent> silent_;  // the oldest first
};

}  // namespace tutti
