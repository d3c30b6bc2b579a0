// Replies: a memory optimization for a step that receives a message from a peer, adds it to other values, and
// sends the result back to that peer. The step may store the result over the message, in the slot that the peer
// has filled. The cache lines of that slot are already in this core's cache, and no second slot is touched. In a
// direct all-reduce, half of the cache lines that would otherwise move between cores stay where they are. Pure
// functions.
//
// The peer's slot then holds the reply until the peer has read it, which is longer than the verification of the
// plan assumes. So a reply is planned only if the peer does not need the slot again in that time: from the message
// that is answered until the peer reads the reply, it must not send more messages on that connection than there
// are slots. Then no rank ever waits for the slot of a reply, and a plan that was verified without replies is also
// correct with them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// A send that may be stored over a message that its own step receives from the same peer on the same lane.
struct SlotReply {
  std::uint32_t channel = 0;
  std::uint32_t step = 0;
  std::uint16_t send_index = 0;     // index among the sends of the step
  std::uint16_t receive_index = 0;  // index among the receives of the step

  bool operator==(const SlotReply&) const = default;
};

// Returns the possible replies of `own`, the plan of `rank`, on connections that have `slots` slots. Builds the
// plans of the peers. The plan must be valid (see verify()).
std::vector<SlotReply> slot_replies(const Generator& generator, std::uint32_t rank, const RankPlan& own,
                                    std::uint32_t slots);

}  // namespace tutti
