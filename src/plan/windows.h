// Windows: how a message travels if the ranks' buffers are mapped (registered memory that a peer can access
// directly, for example shared memory). The verifier proves plans under these rules, and the executor follows
// them. Pure functions.
//
// One step sends a message and one step receives it. In each tile, the k-th message that a channel sends on a
// connection is the k-th message that the other end receives, so the two steps of a message are known before the
// plan runs. These two steps select one of three rules:
//
//   publish  The sender's step only sends (and perhaps stores) one unmodified slice of its input or output. Nothing
//            is copied: during its own step, the receiver reads the slice in the sender's memory. The sender's call
//            must not end before that.
//   push     The receiver's step only stores this one value to its output (and perhaps forwards it). During its own
//            step, the sender writes the value directly into the receiver's sink, after the receiver has entered the
//            same call. The receiver then does not write, and forwards from its sink.
//   slot     All other messages go through a slot of the connection, as all messages do without windows. The messages
//            of a step with a run of several chunks (Step::run) always do, because the chunks of a run need not follow
//            each other in memory.
//
// In the enumeration Carrier, publish is kPublished, push is kDelivered, and slot is kSlot. (For kReplied see
// replies.h.)
//
// Scratch memory belongs to one rank and is never mapped by another. So it is neither published nor a target of a
// push.
//
// If the steps of a message select publish or push, but the rule cannot be followed at run time, the next rule of the
// list that the steps allow applies. A publish requires that the sender's source is mapped, that the value has at least
// kLeastPublished bytes (on the host only), and that the call does not modify the value (it has no factor by which
// inputs are multiplied, and the step does not divide for an average). If the sender's call is in place, a publish also
// requires PlanShape::windows_in_place. A push requires that the receiver's sink is mapped. If the receiver's call is
// in place, a push also requires PlanShape::windows_in_place. The verifier assumes that a message may use any of the
// rules that are possible for it. So every mixture of mapped and unmapped buffers, and of in-place and out-of-place
// ranks, is proved. docs/verifier.md explains why that is enough.
#pragma once

#include <cstdint>
#include <vector>

#include "base/carrier.h"
#include "plan/plan.h"

namespace tutti {

// The shortest value, in bytes, that the host publishes. For a shorter one, copying it into a slot takes less time than
// waiting until the receiver has read it in the sender's memory. GPUs publish values of any length.
inline constexpr std::uint64_t kLeastPublished = 4096;

// can_publish() is true if the step can be the sender's step of rule publish above, and can_push() is true if the
// step can be the receiver's step of rule push.
bool can_publish(const Step& sender_step);
bool can_push(const Step& receiver_step);

// Returns the first rule that the two steps of a message allow: publish (kPublished), otherwise push (kDelivered),
// otherwise slot (kSlot).
Carrier carrier_of(const Step& sender_step, const Step& receiver_step);
// Returns the rule to use if the sender cannot publish the message at run time: push (kDelivered) if the
// receiver's step allows it, otherwise slot (kSlot).
Carrier carrier_without_publish(const Step& receiver_step);

// One message: one send of a step of a rank's plan, and the step of the peer's plan that receives it.
struct WindowSend {
  std::uint32_t channel = 0;  // channel and step: the sending step, in the sender's plan
  std::uint32_t step = 0;
  std::uint16_t send_index = 0;  // index among the sends of the step: 0 .. Step::send_count - 1
  std::uint16_t lane = 0;
  std::uint32_t peer = 0;          // the receiving rank
  std::uint32_t peer_channel = 0;  // peer_channel and peer_step: the receiving step, in the peer's plan
  std::uint32_t peer_step = 0;
  Carrier carrier = Carrier::kSlot;      // the result of carrier_of()
  Carrier unpublished = Carrier::kSlot;  // the result of carrier_without_publish()
  Slice peer_sink;                       // sink of the receiving step; its space is kNone if that step has no sink

  bool operator==(const WindowSend&) const = default;
};

// Returns every send of `own`, which must be the plan of `rank`, ordered by channel, step and send_index. Uses
// `generator` to build the plans of the receiving ranks, in order to find the steps that receive. The plan must be
// valid (see verify()); a message without a receiver is an assertion failure.
std::vector<WindowSend> window_sends(const Generator& generator, std::uint32_t rank, const RankPlan& own);

}  // namespace tutti
