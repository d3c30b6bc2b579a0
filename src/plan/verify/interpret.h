// An independent check of plans: runs a plan over float32 values in a random interleaving. With the verifier it shares
// only the evaluator (plan/evaluate.h) and the sizes and in-place rules of plan/collective.h. It does not check sets,
// orders or clocks, and copies every message, so it also detects plans that an error in the verifier's model would let
// through. Its sums are rounded, so they depend on the order of the additions: if two plans have the same output bits,
// they have almost certainly done the same additions in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

struct InterpretOptions {
  bool in_place = false;
  std::uint32_t tiles = 2;
  std::uint32_t calls = 2;
  std::uint64_t seed = 1;  // seed of the random interleaving; the inputs do not depend on it
  // If not null, one list is appended to it for each output chunk of each tile, when a rank ends a call: the ranks
  // whose inputs were added in this chunk, in the order of the additions.
  std::vector<std::vector<std::uint32_t>>* orders = nullptr;
};

// Runs options.calls calls of options.tiles tiles. Returns the outputs of all ranks, calls, tiles and chunks (the rank
// varies slowest), with a few elements for each chunk. In a step with Step::completes, the value is divided by a
// constant, so that a wrong flag changes the result. Errors: kInvalidPlan if the plan cannot run to its end (for
// example because of an invalid index or a deadlock), or leaves a message that is not received.
Result<std::vector<float>> interpret(const Plan& plan, const InterpretOptions& options);

}  // namespace tutti
