// An independent judge of plans: runs one over float32 values in a random interleaving. Shares nothing with the
// verifier but the evaluator, knows nothing of sets, orders or clocks, and stages every message. What it adds depends
// on the order of addition, so two plans with the same output bits have done the same.
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
  std::uint64_t seed = 1;  // of the interleaving; inputs are always the same
  // If not null: gets, for each chunk of the result, the ranks that it holds in the order in which they were added.
  std::vector<std::vector<std::uint32_t>>* orders = nullptr;
};

// Outputs of all calls, ranks, tiles and chunks, a few elements each; averages, so that `completes` matters.
// kInvalidPlan when the plan can not be run, does not end, or leaves a message behind.
Result<std::vector<float>> interpret(const Plan& plan, const InterpretOptions& options);

}  // namespace tutti
