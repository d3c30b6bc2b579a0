// The stages inside a machine: a reduce-scatter and an all-gather whose members own any chunks, not equally many. To be
// composed (algorithms/compose.h), hence without a shape of their own. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

enum class Inside : std::uint8_t {
  kDirect,  // everybody sends to the owner, who adds in the order of the members in one step, and sends to everybody
  kRing,  // each chunk goes round once to its owner, added in the order owner + 1, ..., owner, and once round from him
};

// The chunks of each member, in the order in which it deals with them; no two members own the same.
using Owned = std::vector<std::vector<std::uint32_t>>;

// The most messages that the stages need connections to hold.
std::uint16_t inside_slots(Inside how);

// Reads in[c]; stores the sum of the members' in[c] as out[c] at c's owner, marked as complete. Lane 0; one channel. At
// least 2 members.
RankPlan inside_reduce_scatter(Inside how, std::uint32_t member, const Owned& owned);

// Reads out[c] at c's owner and stores it as out[c] at all others. Lane 0; one channel. At least 2 members.
RankPlan inside_all_gather(Inside how, std::uint32_t member, const Owned& owned);

}  // namespace tutti
