#include "transports/verbs/connections.h"

#include "base/assert.h"

namespace tutti {

void VerbsSendConnection::send_published(const WindowRef&, std::uint64_t, const CallTag&) {
  TUTTI_ASSERT(false, "windows are the local transport's: it sends them pinned");
}

void VerbsSendConnection::send_delivered(std::uint64_t, const CallTag&) {
  TUTTI_ASSERT(false, "a remote peer's output cannot be stored to");
}

Arrival VerbsReceiveConnection::arrival(const CallTag& call, std::span<std::byte>) {
  while (const LaneHeader* header = lane_->front()) {
    const std::uint64_t sequence = header->tag.sequence;
    if (sequence != noted_) {
      noted_ = sequence;
      if (number_ != kPointToPointLane) links_.note_call(peer_, header->tag);
    }
    // The peer already sends messages of a later call. If it should have sent one of `call` before, it has given `call`
    // up. If `call` is a collective, the status board of the peer then contains the reason.
    if (sequence > call.sequence) return Arrival::kNothing;
    if (sequence == call.sequence) {
      if (header->tag == call) return lane_->outputs().is_in_bounds(*header) ? Arrival::kMessage : Arrival::kCorrupt;
      mismatched_ = header->tag;
      // Send the state of this rank now: the two ranks can report which of them differs only if each has both tags.
      links_.pusher().push_now();
      return Arrival::kMismatch;
    }
    lane_->receiver().release();  // a message of an earlier call that failed
  }
  return lane_->state().corrupt() ? Arrival::kCorrupt : Arrival::kNothing;
}

Message VerbsReceiveConnection::front() {
  const LaneHeader* header = lane_->front();
  TUTTI_ASSERT(header != nullptr);
  if (header->output_offset != ReceiveTargets::kInSlot) {
    return {.carrier = Carrier::kDelivered, .bytes = header->bytes, .output_offset = header->output_offset};
  }
  return {.carrier = Carrier::kSlot, .data = lane_->receiver().payload(), .bytes = header->bytes};
}

}  // namespace tutti
