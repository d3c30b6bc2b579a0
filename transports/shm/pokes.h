// Pokes: how a rank is woken that sleeps on descriptors (epoll) because it also waits for something else than shared
// memory. A poke is meant for one communicator of a rank, since several may sleep in one process, each in its own
// thread: whoever of them takes a poke off a shared socket hands it on to the eventfd of the one that is meant.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tutti/result.h"

namespace tutti {

// One communicator's end. Made by its SegmentExchange.
class PokeReceiver {
 public:
  virtual ~PokeReceiver() = default;
  // A sleep must end when any of these becomes readable after drain(). Open as long as the receiver is.
  virtual std::vector<int> descriptors() const = 0;
  // Takes what has made them readable. By the rank, before it looks for what it waits for and then sleeps.
  virtual void drain() = 0;
};

// Eventfds by key. Thread-safe.
class PokeTable {
 public:
  PokeTable() = default;
  ~PokeTable();
  PokeTable(const PokeTable&) = delete;
  PokeTable& operator=(const PokeTable&) = delete;

  Result<int> open(std::uint64_t key);  // the table's; the key must be free
  void close(std::uint64_t key);
  void signal(std::uint64_t key);  // nothing if nobody has opened it
  void signal_all();

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, int> events_;
};

void clear_event(int eventfd);

}  // namespace tutti
