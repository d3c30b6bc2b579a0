// UnixGreetings: accepts connections on a listening Unix socket and receives the first packet of each.
//
// It watches all connections together, so a connection that sends nothing does not delay the others. Connections of
// other users are closed as soon as they are accepted. Only wait() blocks, for a limited time. Each call handles a
// limited number of connections, so a caller that calls these functions in a loop can check its deadline in each
// iteration, even if unrelated processes keep connecting.
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
  // A function of the caller that gets a connection and its first packet. It returns true if it takes ownership of
  // `fd`. If it returns false, UnixGreetings closes `fd`. `process`: the process at the other end.
  using Admit = std::function<bool(int fd, pid_t process, std::span<const std::byte> packet)>;

  // `listener` must be non-blocking; the caller still owns it. `max_pending`: the maximum number of connections without
  // a packet that receive_packets() keeps. `longest`: the length in bytes of the longest packet that is passed to
  // `admit`; a connection with a longer packet is closed.
  UnixGreetings(int listener, std::size_t max_pending, std::size_t longest, Admit admit)
      : listener_(listener), max_pending_(max_pending), longest_(longest), admit_(std::move(admit)) {}

  // Accepts connections that wait on the listener, at most kAcceptsAtOnce (unix_greetings.cc) in one call. If the
  // system has no descriptor or no memory for another connection, the connection that has waited longest for its packet
  // is closed, unless its packet has arrived now and is admitted. Errors: kSystem if accepting fails for another
  // reason, or if there is no connection to close.
  Status accept_some();
  // Calls `admit` for each connection on which the first packet has arrived. Then, if more than `max_pending`
  // connections are left, it closes those that have waited longest.
  void receive_packets();
  // Waits until a connection or a packet arrives, or the time has passed.
  void wait(int timeout_ms) const;

 private:
  struct PendingConnection {
    OwnedDescriptor fd;
    pid_t process;
  };
  bool receive_packet(PendingConnection& pending);
  void drop_oldest();
  bool make_room();

  const int listener_;
  const std::size_t max_pending_;
  const std::size_t longest_;
  const Admit admit_;
  std::list<PendingConnection> pending_;  // the oldest first
};

}  // namespace tutti
