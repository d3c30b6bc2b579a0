// The event heap of the event engine. Each node has four children, because such a heap is less deep than a binary
// one and keeps siblings in one cache line. Events with equal times are ordered by owner, so that a run is
// deterministic. Used by one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

enum class EventKind : std::uint8_t {
  kReady,    // a step can run, and needs a core
  kMove,     // a step's channel starts to move bytes
  kEnd,      // a step has ended
  kPort,     // a port is free again
  kMoved,    // a flow of a channel has arrived
  kCarried,  // a flow of a port has arrived
};

struct Event {
  double time = 0;
  // A channel of a rank, a port, or a connection of a rank, depending on the kind of event.
  std::uint32_t owner = 0;
  std::uint32_t kind_and_stamp = 0;

  // `stamp` is the stamp of a flow. Its lowest 29 bits are stored. If a flow's stamp has changed since, the event
  // is obsolete.
  static Event at(double time, EventKind kind, std::uint32_t owner, std::uint32_t stamp = 0) {
    return {.time = time, .owner = owner, .kind_and_stamp = static_cast<std::uint32_t>(kind) | stamp << 3};
  }
  EventKind kind() const { return static_cast<EventKind>(kind_and_stamp & 7); }
  bool has_stamp(std::uint32_t stamp) const { return kind_and_stamp >> 3 == (stamp & 0x1fffffff); }
  bool before(const Event& other) const {
    if (time != other.time) return time < other.time;
    return owner != other.owner ? owner < other.owner : kind_and_stamp < other.kind_and_stamp;
  }
};
static_assert(sizeof(Event) == 16);

class EventHeap {
 public:
  bool empty() const { return events_.empty(); }
  const Event& first() const { return events_.front(); }

  void push(const Event& event) {
    std::size_t at = events_.size();
    events_.push_back(event);
    while (at > 0) {
      const std::size_t parent = (at - 1) / kChildren;
      if (!event.before(events_[parent])) break;
      events_[at] = events_[parent];
      at = parent;
    }
    events_[at] = event;
  }

  Event pop() {
    const Event first = events_.front();
    const Event moved = events_.back();
    events_.pop_back();
    if (events_.empty()) return first;
    std::size_t at = 0;
    while (true) {
      const std::size_t begin = at * kChildren + 1;
      if (begin >= events_.size()) break;
      std::size_t best = begin;
      const std::size_t end = begin + kChildren < events_.size() ? begin + kChildren : events_.size();
      for (std::size_t child = begin + 1; child < end; ++child) {
        if (events_[child].before(events_[best])) best = child;
      }
      if (!events_[best].before(moved)) break;
      events_[at] = events_[best];
      at = best;
    }
    events_[at] = moved;
    return first;
  }

 private:
  static constexpr std::size_t kChildren = 4;
  std::vector<Event> events_;
};

}  // namespace tutti
