#include "transports/ucx/connections.h"

#include "base/assert.h"

namespace tutti {
namespace {

// For this time after its first call, may_bring_more() assumes that messages of a peer that has left or is lost can
// still be in transit.
constexpr std::int64_t kMoreNs = 1'000'000'000;

}  // namespace

void UcxSendConnection::send_published(const WindowRef&, std::uint64_t, const CallTag&) {
  TUTTI_ASSERT(false, "no memory is registered with the UCX transport");
}

void UcxSendConnection::send_delivered(std::uint64_t, const CallTag&) {
  TUTTI_ASSERT(false, "nobody stores into a peer's memory over UCX");
}

Arrival UcxReceiveConnection::arrival(const CallTag& call, std::span<std::byte>) {
  for (;;) {
    UcxArrived* message = worker_->next(lane_);
    if (message == nullptr) return lane_.corrupt ? Arrival::kCorrupt : Arrival::kNothing;
    const CallTag& tag = message->header.tag;
    if (tag.sequence != noted_) {
      noted_ = tag.sequence;
      if (lane_.number < kPointToPointLane) worker_->note_call(*lane_.peer, tag);
    }
    // The peer already sends messages of a later call. If it should have sent one of `call` before, it has given `call`
    // up. If `call` is a collective, the status board of the peer then contains the reason.
    if (tag.sequence > call.sequence) return Arrival::kNothing;
    if (tag.sequence == call.sequence && tag != call) {
      mismatched_ = tag;
      // Send the state of this rank now: the two ranks can report which of them differs only if each has both tags.
      worker_->push_status();
      return Arrival::kMismatch;
    }
    if (message->state != UcxArrived::State::kComplete) return Arrival::kNothing;
    if (tag.sequence == call.sequence) return Arrival::kMessage;
    worker_->release(lane_, *message);  // a message of an earlier call that failed
  }
}

bool UcxReceiveConnection::may_bring_more() {
  if (worker_->over() || lane_.corrupt || lane_.peer->dead()) return false;
  const std::int64_t now_ns = worker_->now_ns();
  if (more_asked_ns_ == 0) more_asked_ns_ = now_ns;
  const UcxArrived* message = worker_->next(lane_);
  const bool coming = message != nullptr && message->state != UcxArrived::State::kComplete;
  return (coming || !lane_.peer->left) && now_ns - more_asked_ns_ < kMoreNs;
}

Message UcxReceiveConnection::front() {
  const UcxArrived* message = worker_->next(lane_);
  TUTTI_ASSERT(message != nullptr && message->state == UcxArrived::State::kComplete);
  return {.carrier = Carrier::kSlot, .data = message->data, .bytes = message->header.bytes};
}

void UcxReceiveConnection::release() {
  UcxArrived* message = worker_->next(lane_);
  TUTTI_ASSERT(message != nullptr);
  worker_->release(lane_, *message);
}

}  // namespace tutti
