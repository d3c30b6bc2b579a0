// Wake-ups for ranks that sleep on file descriptors (epoll), because they also wait for something other than shared
// memory.
//
// A wake-up is addressed to one communicator of a rank. Several communicators may sleep in one process, each in its
// own thread, and share one socket for each peer. The thread that reads a wake-up from the socket forwards it to the
// eventfd of the communicator to which it is addressed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tutti/result.h"

namespace tutti {

// The receiving end of wake-ups for one communicator. Created by its SegmentExchange.
class WakeReceiver {
 public:
  virtual ~WakeReceiver() = default;
  // A sleep must end when any of these descriptors becomes readable after drain(). They stay open as long as the
  // receiver exists.
  virtual std::vector<int> descriptors() const = 0;
  // Reads the data that has made the descriptors readable, so that the next sleep waits for later events. If there are
  // too many events for one call, later calls handle the others, which may end the next sleep at once. The rank calls
  // it before it polls once more and then sleeps.
  virtual void drain() = 0;
};

// A table of eventfds, one for each WakeReceiver, found by a key. Thread-safe.
class WakeTable {
 public:
  WakeTable() = default;
  ~WakeTable();
  WakeTable(const WakeTable&) = delete;
  WakeTable& operator=(const WakeTable&) = delete;

  Result<int> open(std::uint64_t key);  // creates an eventfd, which the table owns; the key must be unused
  void close(std::uint64_t key);
  void signal(std::uint64_t key);  // makes the eventfd readable; no effect if there is none with that key
  void signal_all();

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, int> events_;
};

// Sets the counter of the eventfd to zero, so that it is not readable.
void clear_event(int eventfd);

}  // namespace tutti
