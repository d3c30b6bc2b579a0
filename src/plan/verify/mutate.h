// Mutation testing of the verifier. Changes one field of one step of a plan at a time. The verifier must refuse
// each mutant, unless the independent interpreter (plan/verify/interpret.h) shows that the change is harmless.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// Calls `visit` with each mutant and its name, for example "rank 2 channel 0 step 3: sink chunk 1 -> 2". Changes:
// space and chunk of source and sink, each port of the step, the counts, list_begin, source_position, completes,
// and the reserved fields. Also swaps neighbouring steps, deletes and repeats steps, deletes entries of
// Channel::after, and moves them by one tile.
void for_each_mutant(const Plan& plan, const std::function<void(const Plan& mutant, const std::string& name)>& visit);

struct MutationCount {
  std::uint64_t tried = 0;
  std::uint64_t refused = 0;  // refused by the verifier
  // The verifier accepted the mutant, and in several interleavings its results are bit for bit those of the
  // original plan on all ranks. If only one rank receives a sum, it may also be the same sum in another order that
  // PlanShape::order allows.
  std::uint64_t harmless = 0;
  std::uint64_t missed = 0;  // the verifier accepted the mutant, but it is not harmless
  std::vector<std::string> missed_names;

  MutationCount& operator+=(const MutationCount& other);
};

// Tests all mutants of a valid plan, each of them out of place and in place.
MutationCount count_mutations(const Plan& plan);

}  // namespace tutti
