#include "transports/verbs/lane_receiver.h"

#include <algorithm>

namespace tutti {

std::optional<LaneHeader> LaneReceiver::take_part(std::uint32_t slot, std::uint32_t parts) {
  if (slot >= options_.slots || whole_[slot]) {
    state_.set_corrupt();
    return std::nullopt;
  }
  if (++parts_[slot] < parts) return std::nullopt;
  parts_[slot] = 0;
  whole_[slot] = true;
  ++arrived_;
  return memory_.received_header(slot);
}

const LaneHeader* LaneReceiver::front() {
  if (front_) return &*front_;
  if (!has_message()) return nullptr;
  const LaneHeader header = memory_.received_header(released_);
  const bool in_slot = header.output_offset == ReceiveTargets::kInSlot;
  if (header.number != static_cast<std::uint32_t>(released_) || header.tag.sequence == 0 ||
      (in_slot && header.bytes > options_.slot_bytes)) {
    state_.set_corrupt();
  }
  if (state_.corrupt()) return nullptr;
  return &front_.emplace(header);
}

void LaneReceiver::release() {
  front_.reset();
  whole_[released_ % options_.slots] = false;
  ++released_;
  report_released_if_due();
}

// True if the releases of this rank should be reported in a message of their own. The next message in the other
// direction would report them at no cost, so releases of fewer than half of the slots may wait for it. They may not
// wait if the peer has no credit left, as far as this rank knows, because the peer may need a credit before this rank
// can send that next message.
bool LaneReceiver::must_report_released() const {
  if (reported_released_ == released_) return false;
  return released_ - reported_released_ >= std::max<std::uint64_t>(1, options_.slots / 2) ||
         arrived_ - reported_released_ >= options_.slots;
}

void LaneReceiver::report_released_if_due() {
  if (!must_report_released() || !state_.works() || !pairs_.has_capacity()) return;
  note_reported();
  pairs_.post_empty(
      0, LaneImmediate::kIsReleased | (static_cast<std::uint32_t>(released_) & LaneImmediate::kReleasedMask));
}

}  // namespace tutti
