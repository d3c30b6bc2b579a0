// How a message travels when the ranks' buffers are mapped into each other ("windows"): the rules that the verifier
// proves and the executor follows. Pure functions.
//
// A message is sent by one step and received by one step. The k-th message that a channel sends on a connection in a
// tile is the k-th that the other end receives in that tile, so both steps are known before anything runs. They decide:
//
//   publish  the sender's step only sends (and perhaps stores) one unmodified slice of its input or output. Nothing is
//            copied: the receiver reads the slice in the sender's memory during its own step. The sender's call may not
//            end before that.
//   push     the receiver's step does nothing but store this one value to its output (and perhaps forward it). The
//            sender writes it straight into the receiver's sink during its own step, once the receiver has entered the
//            same call; the receiver then does not write, and forwards from its sink.
//   slot     anything else: through a slot of the connection, as without windows.
//
// Scratch is a rank's own and mapped by nobody: it is neither published nor pushed to.
//
// Where a rule cannot be followed at run time the next one below it applies. A publish needs the sender's source to be
// mapped, the value to be unmodified (no factor, no division), and, where the sender's call is in place,
// PlanShape::windows_in_place. A push needs the receiver's sink to be mapped and, where the receiver's call is in
// place, the same. The verifier takes all rules that may apply to a message at once, so every mixture of mapped and
// unmapped buffers and of in-place and out-of-place ranks is proved; docs/verifier.md says why that is enough.
#pragma once

#include <cstdint>
#include <vector>

#include "base/carrier.h"
#include "plan/plan.h"

namespace tutti {

// True where the rule's condition on the steps holds.
bool can_publish(const Step& sender_step);
bool can_push(const Step& receiver_step);

// The first rule that applies to the steps of one message: publish, else push, else slot.
Carrier carrier_of(const Step& sender_step, const Step& receiver_step);
// The same where publishing is ruled out at run time.
Carrier carrier_without_publish(const Step& receiver_step);

// One send of one step of a rank's plan, and what is at its other end.
struct WindowSend {
  std::uint32_t channel = 0;  // of the sender's plan
  std::uint32_t step = 0;
  std::uint16_t send_index = 0;  // 0 .. Step::send_count - 1
  std::uint16_t lane = 0;
  std::uint32_t peer = 0;          // the receiving rank
  std::uint32_t peer_channel = 0;  // of the receiver's plan
  std::uint32_t peer_step = 0;
  Carrier carrier = Carrier::kSlot;      // the first rule that applies
  Carrier unpublished = Carrier::kSlot;  // the rule where publishing is ruled out at run time
  Slice peer_sink;                       // the receiver's sink; space kNone where it has none

  bool operator==(const WindowSend&) const = default;
};

// Every send of `own`, the plan of `rank`, in the order of channel, step, send_index. Builds the receiving peers'
// plans. The plan must be one that verifies (asserted as far as it is met).
std::vector<WindowSend> window_sends(const Generator& generator, std::uint32_t rank, const RankPlan& own);

}  // namespace tutti
