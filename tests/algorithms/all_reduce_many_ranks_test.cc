// Verifies all_reduce plans of many ranks. The program takes some seconds, so it is separate from the quick tests.
#include <gtest/gtest.h>

#include "support.h"

namespace tutti {
namespace {

class ManyRanks : public testing::TestWithParam<Algorithm> {};

TEST_P(ManyRanks, AreProvedInEveryMode) {
  for (std::uint32_t ranks = 34; ranks <= 64; ++ranks) {
    EXPECT_EQ(fault_of(plan_of({.ranks = ranks}, GetParam())), "") << ranks;
  }
  EXPECT_EQ(fault_of(plan_of({.ranks = 100}, GetParam())), "");
}

TEST_P(ManyRanks, AreProvedInPlace) {
  for (const std::uint32_t ranks : {257u, 1000u}) {
    const Result<VerifyReport> report =
        verify(plan_of({.ranks = ranks}, GetParam()), {.in_place = true, .tiles = 1, .calls = 1});
    EXPECT_TRUE(report.ok()) << ranks << ": " << report.error().message;
  }
}

TEST_P(ManyRanks, AreProvedOnMachines) {
  for (std::uint32_t ranks = 34; ranks <= 64; ranks += 10) {
    for (const std::uint32_t first : {1u, ranks / 2, (2 * ranks + 2) / 3}) {
      const Plan plan = plan_of(on_machines(side_by_side({first, ranks - first})), GetParam());
      EXPECT_EQ(fault_of(plan), "") << first << " and " << ranks - first;
    }
  }
  const Plan plan = plan_of(on_machines(side_by_side(std::vector<std::uint32_t>(48, 5))), GetParam());
  const Result<VerifyReport> report = verify(plan, {.in_place = true, .calls = 1});
  EXPECT_TRUE(report.ok()) << report.error().message;
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ManyRanks, testing::ValuesIn(algorithms_of(CollectiveKind::kAllReduce)),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

}  // namespace
}  // namespace tutti
