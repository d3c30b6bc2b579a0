// Verifies, including races, the plans of 4,096 ranks whose number of steps grows at most like ranks * log(ranks),
// and checks a limit on their steps. `tutti verify --ranks 4096` verifies the other plans, which takes minutes.
#include <gtest/gtest.h>

#include "plan/collective.h"
#include "support.h"

namespace tutti {
namespace {

constexpr std::uint32_t kRanks = 4096;
constexpr std::uint64_t kMostSteps = 8 * kRanks;

struct Sample {
  CollectiveKind kind;
  Algorithm algorithm;
};

class Largest : public testing::TestWithParam<Sample> {};

TEST_P(Largest, IsProvedWithinABoundedNumberOfSteps) {
  const auto [kind, algorithm] = GetParam();
  const Collective collective{.kind = kind, .ranks = kRanks, .root = has_root(kind) ? kRanks / 2 : 0};
  const Result<VerifyReport> report =
      verify(plan_of(collective, algorithm), {.in_place = true, .own_order_only = true, .tiles = 1, .calls = 1});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->race_free);
  EXPECT_GE(report->messages, kRanks - 1);
  EXPECT_LE(report->steps, kMostSteps);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Largest,
                         testing::Values(Sample{CollectiveKind::kAllReduce, Algorithm::kDoubleTree},
                                         Sample{CollectiveKind::kBarrier, Algorithm::kDoubleTree},
                                         Sample{CollectiveKind::kBroadcast, Algorithm::kDoubleTree},
                                         Sample{CollectiveKind::kBroadcast, Algorithm::kBinomial},
                                         Sample{CollectiveKind::kBroadcast, Algorithm::kChain},
                                         Sample{CollectiveKind::kBroadcast, Algorithm::kTree},
                                         Sample{CollectiveKind::kReduce, Algorithm::kDoubleTree},
                                         Sample{CollectiveKind::kReduce, Algorithm::kBinomial},
                                         Sample{CollectiveKind::kReduce, Algorithm::kChain},
                                         Sample{CollectiveKind::kReduce, Algorithm::kTree},
                                         Sample{CollectiveKind::kGather, Algorithm::kBinomial},
                                         Sample{CollectiveKind::kScatter, Algorithm::kBinomial}),
                         [](const auto& parameter) {
                           return std::string(to_string(parameter.param.kind)) + "_" +
                                  std::string(to_string(parameter.param.algorithm));
                         });

}  // namespace
}  // namespace tutti
