// Verifies the plans of every collective for more ranks than the quick tests, and for every number of ranks up to
// 64.
#include <gtest/gtest.h>

#include <set>

#include "every_plan.h"
#include "plan/verify/verify.h"

namespace tutti {
namespace {

class ManyRanks : public testing::TestWithParam<Pair> {};

// Returns whether the number of steps of the whole plan grows at least with the square of the number of ranks.
bool is_quadratic(const Plan& small, const Plan& twice_as_many) {
  const auto steps = [](const Plan& plan) {
    std::size_t all = 0;
    for (const RankPlan& rank : plan.ranks) {
      for (const Channel& channel : rank.channels) all += channel.steps.size();
    }
    return all;
  };
  return steps(twice_as_many) > 3 * steps(small);
}

TEST_P(ManyRanks, AreProvedUpTo64) {
  for (std::uint32_t ranks = 18; ranks <= 64; ++ranks) {
    const std::uint32_t last = has_root(GetParam().kind) ? ranks - 1 : 0;
    for (const std::uint32_t root : std::set{0u, (last + 1) / 2, last}) {
      const Result<VerifyReport> report = verify_all(plan_of(GetParam(), ranks, root));
      ASSERT_TRUE(report.ok()) << ranks << " ranks, root " << root << ": " << report.error().message;
    }
  }
}

TEST_P(ManyRanks, AreProvedFor257And1000) {
  const bool quadratic = is_quadratic(plan_of(GetParam(), 16), plan_of(GetParam(), 32));
  for (const std::uint32_t ranks : {257u, 1000u}) {
    if (quadratic && ranks > 257) continue;
    const Plan plan = plan_of(GetParam(), ranks, has_root(GetParam().kind) ? ranks / 2 : 0);
    const Result<VerifyReport> report = verify(plan, {.in_place = true, .windows = !quadratic, .calls = 1});
    ASSERT_TRUE(report.ok()) << ranks << " ranks: " << report.error().message;
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, ManyRanks, testing::ValuesIn(every_pair()),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace tutti
