// Replies: a memory optimization for a step that receives a message from a peer, adds it to other values, and
// sends the result back to that peer. In shared memory, the step may store the result over the received message,
// in the slot that the peer has filled, instead of in a slot of the connection back to the peer. The cache lines
// of that slot are already in this core's cache, and no second slot is touched. In a two_shot all-reduce, this
// avoids half of the transfers of cache lines between cores. Pure functions.
//
// The slot then holds the reply until the peer has read it. That is longer than the verifier assumes, because the
// verifier frees a slot when its message is received. So a reply is allowed only if the peer does not need the
// slot again in that time: in its steps from the one that sends the message to the one that receives the reply,
// the peer must not send more messages on that connection than there are slots. Then no rank ever waits for the
// slot of a reply, and a plan that was verified without replies is also correct with them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// A send whose value may be stored over a message that the same step receives from the same peer on the same lane.
struct SlotReply {
  std::uint32_t channel = 0;
  std::uint32_t step = 0;
  std::uint16_t send_index = 0;     // index of the reply among the sends of the step
  std::uint16_t receive_index = 0;  // index of the answered message among the receives of the step

  bool operator==(const SlotReply&) const = default;
};

// Returns the possible replies of `own`, the plan of `rank`, if every connection has `slots` slots. Builds the
// plans of the rank's peers with `generator`. The plan must be valid (see verify()).
std::vector<SlotReply> slot_replies(const Generator& generator, std::uint32_t rank, const RankPlan& own,
                                    std::uint32_t slots);

}  // namespace tutti
