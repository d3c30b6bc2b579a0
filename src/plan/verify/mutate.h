// Mutation testing of the verifier: every single-field change of every step of a plan must be refused, or else be
// harmless by the judgement of the independent interpreter (plan/interpret.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// Calls `visit` with each mutant and its name ("rank 2 channel 0 step 3: sink chunk 1 -> 2"). Mutates: space and chunk
// of source and sink, each port of the step, the counts, list_begin, source_position, completes, the reserved fields;
// swaps neighbouring steps, deletes and repeats steps, deletes entries of Channel::after and moves them by a tile.
void for_each_mutant(const Plan& plan, const std::function<void(const Plan& mutant, const std::string& name)>& visit);

struct MutationCount {
  std::uint64_t tried = 0;
  std::uint64_t refused = 0;  // by the verifier
  // Accepted, and bit for bit the unmutated result on all ranks in several interleavings; or, where only one rank gets
  // a sum, the same sum in another order that the shape's promise leaves open.
  std::uint64_t harmless = 0;
  std::uint64_t missed = 0;  // accepted, and neither of the two
  std::vector<std::string> missed_names;

  MutationCount& operator+=(const MutationCount& other);
};

// All mutants of a plan that verifies, each out of place and in place.
MutationCount count_mutations(const Plan& plan);

}  // namespace tutti
