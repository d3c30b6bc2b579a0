// An independent check of plans: runs a plan over float32 values in a random interleaving. It shares only the
// evaluator with the verifier, so an error in the verifier's model cannot hide here: it uses no sets, orders or
// clocks, and copies every message. Its sums depend on the order of the additions because they are rounded. So two
// plans with the same output bits have done the same additions in the same order.
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
  std::uint64_t seed = 1;  // seed of the interleaving; the inputs are always the same
  // If it is not null, receives for each chunk of the result the ranks that it contains, in the order of their
  // addition.
  std::vector<std::vector<std::uint32_t>>* orders = nullptr;
};

// Returns the outputs of all calls, ranks, tiles and chunks, with a few elements for each chunk. Sums are divided
// at the step with `completes`, so that this flag affects the result. Errors: kInvalidPlan if the plan cannot run,
// does not end, or leaves a message unreceived.
Result<std::vector<float>> interpret(const Plan& plan, const InterpretOptions& options);

}  // namespace tutti
