// The stages of a hierarchical all-reduce inside a machine: a reduce-scatter and an all-gather in which the
// members (the machine's ranks, numbered from 0) may own different numbers of chunks. They are used only as stages
// of a Composer (algorithms/compose.h), so they have no PlanShape. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

enum class Inside : std::uint8_t {
  // Reduce-scatter: all members send their values of a chunk to its owner, which adds them in the order of the
  // members, in one step. All-gather: the owner sends the result to all other members.
  kDirect,
  // Reduce-scatter: each chunk travels around the ring of the members, from member owner + 1 to the owner, and
  // every member adds its value. All-gather: the result travels around the ring from its owner.
  kRing,
};

// The chunks that each member owns, indexed by member, in the order in which they are processed. Each chunk has at
// most one owner.
using Owned = std::vector<std::vector<std::uint32_t>>;

// Number of messages that a connection must be able to hold for the stages of kind `how`.
std::uint16_t inside_slots(Inside how);

// Returns the reduce-scatter plan of `member`. For each chunk c, the owner of c stores the sum of all members'
// in[c] to out[c], and its step is marked as completing (Step::completes). Uses lane 0 and one channel. Requires
// at least 2 members.
RankPlan inside_reduce_scatter(Inside how, std::uint32_t member, const Owned& owned);

// Returns the all-gather plan of `member`. For each chunk c, the owner's out[c] is copied to out[c] of all other
// members. Uses lane 0 and one channel. Requires at least 2 members.
RankPlan inside_all_gather(Inside how, std::uint32_t member, const Owned& owned);

}  // namespace tutti
