// The stages inside a machine: a reduce-scatter and an all-gather in which the members may own different numbers
// of chunks. They are used only as stages of a Composer (algorithms/compose.h), so they have no PlanShape. Pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

enum class Inside : std::uint8_t {
  // All members send to the owner. It adds in the order of the members, in one step, and sends the result to all
  // of them.
  kDirect,
  // Each chunk travels around the ring to its owner, added in the order owner + 1, ..., owner, and once more
  // around the ring.
  kRing,
};

// The chunks of each member, in the order in which it processes them. Each chunk has at most one owner.
using Owned = std::vector<std::vector<std::uint32_t>>;

// Number of messages that a connection must be able to hold for these stages.
std::uint16_t inside_slots(Inside how);

// Reads in[c], and stores the sum of the members' in[c] to out[c] at the owner of c, marked as complete. Uses lane
// 0 and one channel. Requires at least 2 members.
RankPlan inside_reduce_scatter(Inside how, std::uint32_t member, const Owned& owned);

// Reads out[c] at the owner of c, and stores it to out[c] at all other members. Uses lane 0 and one channel.
// Requires at least 2 members.
RankPlan inside_all_gather(Inside how, std::uint32_t member, const Owned& owned);

}  // namespace tutti
