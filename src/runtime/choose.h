// What Algorithm::kAuto stands for: a rule of thumb, the same on every rank. A pure function.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti::detail {

// `bytes` of one block. collective.nodes tells how many machines there are. `in_rank_order`: the ranks must be combined
// in their order.
Algorithm choose_algorithm(const Collective& collective, std::uint64_t bytes, bool in_rank_order = false);

}  // namespace tutti::detail
