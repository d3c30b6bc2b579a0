// What Algorithm::kAuto stands for: a rule of thumb, the same on every rank. A pure function.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti::detail {

struct Choice {
  std::uint64_t bytes = 0;     // of one block
  bool in_rank_order = false;  // the ranks must be combined in their order
  bool memory = true;          // ranks of one machine share memory
  bool attached = false;       // ranks use each other's memory in this call, registered or not
};

// collective.nodes tells how many machines there are.
Algorithm choose_algorithm(const Collective& collective, const Choice& choice);

}  // namespace tutti::detail
