// Replies: a step that adds a message of a peer to others and sends the result back to that peer may store the result
// over the message, in the slot that the peer has filled. The slot's lines are at hand, and no second slot is touched:
// in a direct all-reduce half of all cache lines that would change owners stay where they are. Pure functions.
//
// The peer's slot then holds the reply until the peer has read that, longer than the proof of the plan counts on. So a
// reply is planned only where the peer sends so few messages on that connection, from the one that is answered until it
// reads the reply, that none of them comes to the same slot. Then no rank ever waits for a reply's slot, and what is
// proved without replies holds with them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// One send that may be stored over a message which its own step receives from the same peer on the same lane.
struct SlotReply {
  std::uint32_t channel = 0;
  std::uint32_t step = 0;
  std::uint16_t send_index = 0;     // among the step's sends
  std::uint16_t receive_index = 0;  // among its receives

  bool operator==(const SlotReply&) const = default;
};

// Those of `own`, the plan of `rank`, over connections of `slots` slots. Builds the plans of the peers. The plan must
// be one that verifies.
std::vector<SlotReply> slot_replies(const Generator& generator, std::uint32_t rank, const RankPlan& own,
                                    std::uint32_t slots);

}  // namespace tutti
