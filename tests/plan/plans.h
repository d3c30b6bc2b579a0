// Small plans for the tests in this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "plan/plan.h"

namespace tutti {

inline Plan plan_of(Algorithm algorithm, std::uint32_t ranks) {
  const Result<Generator> generator = find_generator({.ranks = ranks}, algorithm);
  EXPECT_TRUE(generator.ok());
  return build_plan(*generator);
}

// Returns a plan of one rank with the given channels and with one chunk of input, output and scratch.
inline Plan one_rank(std::vector<Channel> channels) {
  Plan plan;
  plan.shape.scratch_chunks = 1;
  plan.ranks.push_back({.channels = std::move(channels)});
  return plan;
}

// Returns a correct plan, which the tests break. Both ranks send in[0] to each other and add in rank order, in 2
// steps each.
inline Plan two_ranks() { return plan_of(Algorithm::kOneShot, 2); }

inline Step& step_of(Plan& plan, std::uint32_t rank, std::uint32_t step) {
  return plan.ranks[rank].channels[0].steps[step];
}

}  // namespace tutti
