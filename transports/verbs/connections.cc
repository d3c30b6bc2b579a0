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
  while (const VerbsLane::Header* header = lane_->front()) {
    const std::uint64_t sequence = header->tag.sequence;
    if (sequence != noted_) {
      noted_ = sequence;
      if (number_ != kPointToPointLane) links_.note_call(peer_, header->tag);
    }
    if (sequence > call.sequence) return Arrival::kNothing;  // the peer has given this call up: its board says why
    if (sequence == call.sequence) {
      if (header->tag == call) return lane_->front_is_placed() ? Arrival::kMessage : Arrival::kCorrupt;
      mismatched_ = header->tag;
      links_.pusher().push_now();  // both sides say best who differs when both know
      return Arrival::kMismatch;
    }
    lane_->release();  // left behind by a call that failed
  }
  return lane_->corrupt() ? Arrival::kCorrupt : Arrival::kNothing;
}

Message VerbsReceiveConnection::front() {
  const VerbsLane::Header* header = lane_->front();
  TUTTI_ASSERT(header != nullptr);
  if (header->landing != Landings::kNowhere) {
    return {.carrier = Carrier::kDelivered, .bytes = header->bytes, .landing = header->landing};
  }
  return {.carrier = Carrier::kSlot, .data = lane_->payload(), .bytes = header->bytes};
}

}  // namespace tutti
