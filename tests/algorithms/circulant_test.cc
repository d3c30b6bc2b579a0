// Tests the circulant algorithms, which work for any number of ranks in the fewest rounds with the least data.
#include "algorithms/circulant.h"

#include <gtest/gtest.h>

#include <bit>

#include "plan/verify/mutate.h"
#include "support.h"

namespace tutti {
namespace {

Plan circulant(CollectiveKind kind, std::uint32_t ranks) {
  return plan_of({.kind = kind, .ranks = ranks}, Algorithm::kCirculant);
}

// Returns how often the rank changes the peer to which it sends.
std::uint32_t partners_of(const RankPlan& plan) {
  std::uint32_t turns = 0;
  // the first peer of the all-gather may be the last one of the reduce-scatter; count it again
  bool half_done = false;
  std::uint32_t last = ~std::uint32_t{0};
  for (const Step& step : plan.channels[0].steps) {
    if (step.send_count == 0) {
      half_done = half_done || step.completes != 0;
      continue;
    }
    const std::uint32_t peer = plan.channels[0].ports[plan.channels[0].sends(step)[0]].peer;
    turns += peer != last || half_done ? 1 : 0;
    last = peer;
    half_done = false;
  }
  return turns;
}

TEST(Circulant, SkipsAreHalvedRoundingUp) {
  EXPECT_EQ(circulant_skips(1), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(circulant_skips(2), (std::vector<std::uint32_t>{2, 1}));
  EXPECT_EQ(circulant_skips(11), (std::vector<std::uint32_t>{11, 6, 3, 2, 1}));
  EXPECT_EQ(circulant_skips(64), (std::vector<std::uint32_t>{64, 32, 16, 8, 4, 2, 1}));
}

TEST(Circulant, BothHalvesAreProved) {
  for (std::uint32_t ranks = 1; ranks <= 33; ++ranks) {
    EXPECT_EQ(fault_of(circulant(CollectiveKind::kReduceScatter, ranks)), "") << ranks;
    EXPECT_EQ(fault_of(circulant(CollectiveKind::kAllGather, ranks)), "") << ranks;
  }
}

TEST(Circulant, IsProvedForManyRanks) {
  for (const std::uint32_t ranks : {48u, 100u, 257u}) {
    for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather}) {
      EXPECT_TRUE(verify(circulant(kind, ranks), {.in_place = true, .calls = 1}).ok()) << ranks;
    }
  }
}

TEST(Circulant, SendsTheLeastInTheFewestRoundsForAnyNumberOfRanks) {
  for (std::uint32_t ranks = 1; ranks <= 70; ++ranks) {
    for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather}) {
      const Plan plan = circulant(kind, ranks);
      const std::uint32_t halves = kind == CollectiveKind::kAllReduce ? 2 : 1;
      const std::uint32_t rounds = halves * log2_up(ranks);
      for (const RankPlan& rank : plan.ranks) {
        ASSERT_EQ(messages_sent(rank), halves * (ranks - 1)) << ranks;
        EXPECT_EQ(partners_of(rank), rounds) << ranks << ": one partner in each round";
      }
      EXPECT_LE(rounds_of(plan), rounds) << ranks;
      if (std::has_single_bit(ranks)) {
        EXPECT_EQ(rounds_of(plan), rounds) << ranks;
      }
    }
  }
}

TEST(Circulant, AddsRoundByRound) {
  const auto four = addition_order(circulant(CollectiveKind::kAllReduce, 4));
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(*four, (std::vector<std::string>{"((r0+r2)+(r3+r1))", "((r1+r3)+(r0+r2))", "((r2+r0)+(r1+r3))",
                                             "((r3+r1)+(r2+r0))"}));
  const auto three = addition_order(circulant(CollectiveKind::kReduceScatter, 3));
  ASSERT_TRUE(three.ok());
  EXPECT_EQ(*three, (std::vector<std::string>{"((r0+r1)+r2)", "((r1+r2)+r0)", "((r2+r0)+r1)"}));
}

TEST(Circulant, NeedsNoMoreThanItsStatedSlotsAndLanes) {
  for (const std::uint32_t ranks : {2u, 5u, 9u, 17u, 40u}) {
    const Plan plan = circulant(CollectiveKind::kAllReduce, ranks);
    EXPECT_LE(plan.shape.slots, 2);
    EXPECT_LE(plan.shape.lanes, 4);
    EXPECT_EQ(verify(plan, {.slots = 1}).ok(), ranks < 4) << ranks;
  }
}

TEST(Circulant, MutationsOfTheHalvesAreRefusedOrHarmless) {
  for (const auto kind : {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather}) {
    for (std::uint32_t ranks = 1; ranks <= 6; ++ranks) {
      const MutationCount count = count_mutations(circulant(kind, ranks));
      EXPECT_EQ(count.missed, 0u) << ranks << " ranks: " << testing::PrintToString(count.missed_names);
    }
  }
}

}  // namespace
}  // namespace tutti
