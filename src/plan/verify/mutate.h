// Mutation testing of the verifier. A *mutant* is a correct plan with one small change, for example of one field
// of one step. The verifier must refuse each mutant, unless the independent interpreter (plan/verify/interpret.h)
// shows that the change is harmless.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// Calls `visit` with each mutant and its name, for example "rank 2 channel 0 step 3: sink chunk 1 -> 2". A mutant
// has one of these changes of one step: another space or chunk of the source or the sink, another port, another
// value of receive_count, send_count, list_begin, source_position, completes, run or a reserved field. Other mutants
// have two neighbouring steps swapped, one step deleted or repeated, or one entry of Channel::after deleted or
// with the other value of tiles_before. `mutant` is valid only during the call of `visit`.
void for_each_mutant(const Plan& plan, const std::function<void(const Plan& mutant, const std::string& name)>& visit);

struct MutationCount {
  std::uint64_t tried = 0;
  std::uint64_t refused = 0;  // number of mutants that the verifier has refused
  // Number of mutants that the verifier accepted, and that in several random interleavings have bit for bit the
  // results of the original plan on all ranks. If only one rank receives each sum (reduce, reduce_scatter), a mutant
  // is also harmless if it adds the same values in another order that PlanShape::order allows.
  std::uint64_t harmless = 0;
  // Number of mutants that the verifier accepted although they are not harmless. Each is an error of the verifier.
  std::uint64_t missed = 0;
  std::vector<std::string> missed_names;

  MutationCount& operator+=(const MutationCount& other);
};

// Tests all mutants of a valid plan, first with out-of-place calls and then with in-place calls, always without
// windows.
MutationCount count_mutations(const Plan& plan);

}  // namespace tutti
