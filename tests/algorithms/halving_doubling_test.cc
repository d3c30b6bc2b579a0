// Tests the halving-doubling plans: rounds, messages and the order of additions.
#include <gtest/gtest.h>

#include <bit>

#include "support.h"

namespace tutti {
namespace {

Plan halving_doubling(std::uint32_t ranks) { return plan_of({.ranks = ranks}, Algorithm::kHalvingDoubling); }

TEST(HalvingDoubling, IsProvedForManyRanks) {
  for (const std::uint32_t ranks : {100u, 256u, 257u}) {
    EXPECT_TRUE(verify(halving_doubling(ranks), {.in_place = true, .calls = 1}).ok()) << ranks;
  }
}

TEST(HalvingDoubling, HasItsStatedRounds) {
  for (std::uint32_t ranks = 1; ranks <= 70; ++ranks) {
    const std::uint32_t rounds = 2 * log2_up(std::bit_floor(ranks)) + (std::has_single_bit(ranks) ? 0 : 2);
    EXPECT_EQ(rounds_of(halving_doubling(ranks)), rounds) << ranks;
  }
}

TEST(HalvingDoubling, SendsWhatItStates) {
  for (std::uint32_t ranks = 1; ranks <= 70; ++ranks) {
    const Plan plan = halving_doubling(ranks);
    const std::uint32_t cores = std::bit_floor(ranks);
    const std::uint32_t helpers = ranks - cores;
    EXPECT_EQ(plan.shape.chunks, cores);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t of_core = 2u * (cores - 1);
      const bool paired = rank < 2 * helpers;
      const std::uint64_t expected = !paired ? of_core : rank % 2 == 0 ? of_core + cores : cores;
      ASSERT_EQ(messages_sent(plan.ranks[rank]), expected) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(HalvingDoubling, AddsInRankOrderAsABalancedTree) {
  const auto four = addition_order(halving_doubling(4));
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(*four, std::vector<std::string>(4, "((r0+r1)+(r2+r3))"));
  const auto seven = addition_order(halving_doubling(7));  // the pairs (0, 1), (2, 3), (4, 5), and rank 6 alone
  ASSERT_TRUE(seven.ok());
  for (const std::string& order : *seven) {
    std::string ranks;
    for (const char letter : order) {
      if (letter >= '0' && letter <= '9') ranks += letter;
    }
    EXPECT_EQ(ranks, "0123456") << order;
  }
}

}  // namespace
}  // namespace tutti
