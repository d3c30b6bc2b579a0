// LaneReceiver: the receiving direction of one VerbsLane. It assembles messages from their parts in the slots, and
// reports released slots to the peer, which returns credits. Use it in the thread that drives progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "transports/verbs/lane_memory.h"
#include "transports/verbs/lane_state.h"
#include "transports/verbs/queue_pairs.h"
#include "transports/verbs/wire.h"

namespace tutti {

class LaneReceiver {
 public:
  // All arguments must outlive this object.
  LaneReceiver(const VerbsLaneOptions& options, LaneState& state, const LaneMemory& memory, QueuePairs& pairs)
      : options_(options),
        state_(state),
        memory_(memory),
        pairs_(pairs),
        parts_(options.slots, 0),
        whole_(options.slots, false) {}

  // Records that one of the `parts` parts of a message has arrived in `slot`. Returns the header if the message is now
  // complete, and nothing otherwise. The lane becomes corrupt if there is no such slot, or if the slot still contains a
  // complete message that was not released.
  std::optional<LaneHeader> take_part(std::uint32_t slot, std::uint32_t parts);

  bool has_message() const { return front_ || whole_[released_ % options_.slots]; }
  // See VerbsLane::front().
  const LaneHeader* front();
  const std::byte* payload() const { return memory_.receive_slot(released_) + sizeof(LaneHeader); }
  void release();

  std::uint64_t released() const { return released_; }  // messages that this rank has released so far
  // Records that a header, or an extra message for this purpose, has informed the peer of all releases so far.
  void note_reported() { reported_released_ = released_; }
  // Reports the releases in a message of their own, if they must not wait for the next header.
  void report_released_if_due();

 private:
  bool must_report_released() const;

  const VerbsLaneOptions& options_;  // belongs to the VerbsLane, like the three references below
  LaneState& state_;
  const LaneMemory& memory_;
  QueuePairs& pairs_;
  std::vector<std::uint32_t> parts_;  // for each slot: parts of its message that have arrived
  std::vector<bool> whole_;           // for each slot: its message has arrived completely
  // The header of the next message. It is a copy that has been checked, because the peer can still change the slot.
  std::optional<LaneHeader> front_;
  std::uint64_t arrived_ = 0;            // complete messages that have arrived so far
  std::uint64_t released_ = 0;           // messages that this rank has released so far
  std::uint64_t reported_released_ = 0;  // the value of `released_` in the last report to the peer
};

}  // namespace tutti
