// The event heap of the event engine: the earliest event is first. Each node has four children, because such a heap has
// half as many levels as a binary one, and four siblings (64 bytes) lie in at most two cache lines. Events with equal
// times are ordered by owner and kind, so that a run is deterministic. Used by one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

enum class EventKind : std::uint8_t {
  // everything that a step waits for has happened, and the step needs a core; only if Parameters::cores is not 0
  kReady,
  // the channel of a step starts to move the bytes of its messages; only in the model kFlows
  kMove,
  // a step has ended
  kEnd,
  // the gap after a message is over, so its port may send the next one; only in the model kFlows
  kPort,
  // a channel has moved all bytes of one message; only in the model kFlows
  kMoved,
  // a port has sent all bytes of one message; only in the model kFlows
  kCarried,
};

struct Event {
  // in microseconds since the start of the call
  double time = 0;
  // The number of the thing to which the event happens. kReady, kMove and kEnd: a task of EventRun. kPort: a port.
  // kMoved and kCarried: a FIFO of EventRun.
  std::uint32_t owner = 0;
  // the kind in the lowest 3 bits, the stamp in the other 29
  std::uint32_t kind_and_stamp = 0;

  // Creates an event. `stamp` is only used for kMoved and kCarried: the present stamp of the flow (EventRun::Flow),
  // of which the lowest 29 bits are stored. If the flow has another stamp when the event is removed, the event is
  // obsolete, because the rate of the flow has changed.
  static Event at(double time, EventKind kind, std::uint32_t owner, std::uint32_t stamp = 0) {
    return {.time = time, .owner = owner, .kind_and_stamp = static_cast<std::uint32_t>(kind) | stamp << 3};
  }
  EventKind kind() const { return static_cast<EventKind>(kind_and_stamp & 7); }
  bool has_stamp(std::uint32_t stamp) const { return kind_and_stamp >> 3 == (stamp & 0x1fffffff); }
  // The order of the heap: by time, then by owner, then by kind and stamp.
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
