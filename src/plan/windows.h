// Windows: how a message travels if the ranks' buffers are mapped into each other's address space. The verifier
// proves plans under these rules, and the executor follows them. Pure functions.
//
// One step sends a message and one step receives it. In each tile, the k-th message that a channel sends on a
// connection is the k-th message that the other end receives, so both steps of a message are known before the plan
// runs. They select the rule:
//
//   publish  The sender's step only sends (and perhaps stores) one unmodified slice of its input or output. Nothing
//            is copied: during its own step, the receiver reads the slice in the sender's memory. The sender's call
//            must not end before that.
//   push     The receiver's step only stores this one value to its output (and perhaps forwards it). During its own
//            step, the sender writes the value directly into the receiver's sink, after the receiver has entered the
//            same call. The receiver then does not write, and forwards from its sink.
//   slot     All other messages go through a slot of the connection, as they do without windows.
//
// Scratch memory belongs to one rank and is never mapped by another. So it is neither published nor a target of a
// push.
//
// If a rule cannot be followed at run time, the next rule of this list applies. A publish requires that the
// sender's source is mapped and that the value is unmodified (no factor, no division). If the sender's call is in
// place, it also requires PlanShape::windows_in_place. A push requires that the receiver's sink is mapped. If the
// receiver's call is in place, it also requires PlanShape::windows_in_place. The verifier assumes that a message
// may use any of the rules that are possible for it. So every mixture of mapped and unmapped buffers, and of
// in-place and out-of-place ranks, is proved. docs/verifier.md explains why that is enough.
#pragma once

#include <cstdint>
#include <vector>

#include "base/carrier.h"
#include "plan/plan.h"

namespace tutti {

// Each returns true if the step satisfies the condition of the rule above.
bool can_publish(const Step& sender_step);
bool can_push(const Step& receiver_step);

// The first rule that the two steps of a message satisfy: publish, then push, then slot.
Carrier carrier_of(const Step& sender_step, const Step& receiver_step);
// The same, but without publish: the rule to use if the sender cannot publish at run time.
Carrier carrier_without_publish(const Step& receiver_step);

// One send of one step of a rank's plan, and the step that receives it.
struct WindowSend {
  std::uint32_t channel = 0;  // in the sender's plan
  std::uint32_t step = 0;
  std::uint16_t send_index = 0;  // 0 .. Step::send_count - 1
  std::uint16_t lane = 0;
  std::uint32_t peer = 0;          // the receiving rank
  std::uint32_t peer_channel = 0;  // in the receiver's plan
  std::uint32_t peer_step = 0;
  Carrier carrier = Carrier::kSlot;      // the first rule that applies
  Carrier unpublished = Carrier::kSlot;  // the rule if publishing is not possible at run time
  Slice peer_sink;                       // sink of the receiving step, or kNone

  bool operator==(const WindowSend&) const = default;
};

// Returns every send of `own`, the plan of `rank`, ordered by channel, step and send_index. Builds the plans of
// the receiving peers to find the steps that receive. The plan must be valid (see verify()); a message without a
// receiver is an assertion failure.
std::vector<WindowSend> window_sends(const Generator& generator, std::uint32_t rank, const RankPlan& own);

}  // namespace tutti
