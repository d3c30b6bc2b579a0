// Tests the plans of all all_reduce algorithms: each plan is verified, and has the numbers of steps, messages and
// slots that the comment at the top of its source file states.
#include "algorithms/algorithms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "algorithms/generators.h"
#include "plan/verify/verify.h"

namespace tutti {
namespace {

using testing::HasSubstr;

Plan plan_of(Algorithm algorithm, std::uint32_t ranks) {
  return build_plan(*find_generator({.ranks = ranks}, algorithm));
}

class EveryAlgorithm : public testing::TestWithParam<Algorithm> {};

TEST_P(EveryAlgorithm, IsProvedFor1To33Ranks) {
  for (std::uint32_t ranks = 1; ranks <= 33; ++ranks) {
    const Result<VerifyReport> report = verify_all(plan_of(GetParam(), ranks));
    ASSERT_TRUE(report.ok()) << ranks << " ranks: " << report.error().message;
  }
}

TEST_P(EveryAlgorithm, IsProvedWithMoreSlotsThanItNeeds) {
  for (const std::uint32_t ranks : {2u, 3u, 7u, 12u}) {
    const Plan plan = plan_of(GetParam(), ranks);
    for (const std::uint16_t extra : {1, 2, 7}) {
      const auto slots = static_cast<std::uint16_t>(plan.shape.slots + extra);
      for (const bool in_place : {false, true}) {
        const Result<VerifyReport> report = verify(plan, {.in_place = in_place, .windows = true, .slots = slots});
        EXPECT_TRUE(report.ok()) << ranks << " ranks, " << slots << " slots: " << report.error().message;
      }
    }
  }
}

TEST_P(EveryAlgorithm, IsProvedOverManyTilesAndCalls) {
  const Plan plan = plan_of(GetParam(), 6);
  for (const bool in_place : {false, true}) {
    EXPECT_TRUE(verify(plan, {.in_place = in_place, .windows = true, .tiles = 7, .calls = 5}).ok());
  }
}

TEST_P(EveryAlgorithm, IsOneStepForOneRank) {
  const Plan plan = plan_of(GetParam(), 1);
  std::size_t steps_per_chunk = 0;
  for (const Channel& channel : plan.ranks[0].channels) steps_per_chunk += channel.steps.size();
  EXPECT_EQ(steps_per_chunk, plan.shape.chunks);
  EXPECT_TRUE(verify_all(plan).ok());
}

TEST_P(EveryAlgorithm, RefusesNoRanks) {
  const auto none = find_generator({.ranks = 0}, GetParam());
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, EveryAlgorithm, testing::ValuesIn(algorithms_of(CollectiveKind::kAllReduce)),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

TEST(Algorithms, RefuseAutoAndTooManyRanksWithTheReason) {
  EXPECT_THAT(find_generator({.ranks = 4}, Algorithm::kAuto).error().message, HasSubstr("choose ring, double_tree"));
  EXPECT_THAT(find_generator({.ranks = 4}, Algorithm{99}).error().message, HasSubstr("choose ring"));
  for (const Algorithm direct : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    EXPECT_TRUE(find_generator({.ranks = 1024}, direct).ok());
    const auto refused = find_generator({.ranks = 1025}, direct);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("at most 1024 ranks, not 1025"));
  }
  EXPECT_FALSE(find_generator({.ranks = kMaxRanks + 1}, Algorithm::kRing).ok());
}

// The numbers are those in the comments of the algorithms' source files.
TEST(Ring, HasItsStatedStepsAndMessages) {
  for (const std::uint32_t ranks : {2u, 3u, 8u}) {
    for (const RankPlan& rank : plan_of(Algorithm::kRing, ranks).ranks) {
      ASSERT_EQ(rank.channels.size(), 1u);
      EXPECT_EQ(rank.channels[0].steps.size(), 2 * ranks - 1);
      EXPECT_EQ(rank.channels[0].ports.size(), 2u);
    }
  }
}

TEST(Ring, NeedsExactlyItsStatedSlots) {
  for (std::uint32_t ranks = 2; ranks <= 16; ++ranks) {
    const Plan plan = plan_of(Algorithm::kRing, ranks);
    EXPECT_TRUE(verify(plan, {.slots = 2}).ok());
    EXPECT_FALSE(verify(plan, {.slots = 1}).ok()) << ranks;
  }
}

TEST(TwoShot, NeedsExactlyItsStatedSlots) {
  for (std::uint32_t ranks = 2; ranks <= 16; ++ranks) {
    const Plan plan = plan_of(Algorithm::kTwoShot, ranks);
    EXPECT_TRUE(verify(plan, {.slots = 2}).ok());
    EXPECT_FALSE(verify(plan, {.slots = 1}).ok()) << ranks;
  }
}

TEST(TwoShot, StartsWithADifferentPeerOnEveryRank) {
  const Plan plan = plan_of(Algorithm::kTwoShot, 5);
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    const Channel& channel = plan.ranks[rank].channels[0];
    EXPECT_EQ(channel.steps.size(), 9u);
    EXPECT_EQ(channel.ports[channel.sends(channel.steps[0])[0]].peer, (rank + 1) % 5);
  }
}

TEST(Direct, AddsInRankOrder) {
  for (const Algorithm direct : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const std::uint32_t ranks : {2u, 5u, 9u}) {
      std::string expected = std::string(ranks - 1, '(') + "r0";
      for (std::uint32_t r = 1; r < ranks; ++r) expected += "+r" + std::to_string(r) + ")";
      const auto orders = addition_order(plan_of(direct, ranks));
      ASSERT_TRUE(orders.ok());
      for (const std::string& order : *orders) EXPECT_EQ(order, expected);
    }
  }
}

TEST(OneShot, HasTwoSteps) {
  for (const RankPlan& rank : plan_of(Algorithm::kOneShot, 7).ranks) EXPECT_EQ(rank.channels[0].steps.size(), 2u);
}

}  // namespace
}  // namespace tutti
