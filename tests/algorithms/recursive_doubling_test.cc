// Tests the recursive-doubling plans: rounds, messages and the order of additions.
#include <gtest/gtest.h>

#include <bit>

#include "support.h"

namespace tutti {
namespace {

Plan recursive_doubling(std::uint32_t ranks) { return plan_of({.ranks = ranks}, Algorithm::kRecursiveDoubling); }

TEST(RecursiveDoubling, IsProvedForManyRanks) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 100u, 256u, 257u}) {
    EXPECT_TRUE(verify(recursive_doubling(ranks), {.in_place = true, .calls = 2}).ok()) << ranks;
    EXPECT_TRUE(verify(recursive_doubling(ranks), {.calls = 2}).ok()) << ranks;
  }
}

TEST(RecursiveDoubling, HasItsStatedRounds) {
  for (std::uint32_t ranks = 1; ranks <= 70; ++ranks) {
    const std::uint32_t least = log2_up(std::bit_floor(ranks)) + (std::has_single_bit(ranks) ? 0 : 1);
    const std::uint32_t rounds = rounds_of(recursive_doubling(ranks));
    EXPECT_GE(rounds, least) << ranks;
    EXPECT_LE(rounds, least + (std::has_single_bit(ranks) ? 0 : 1)) << ranks;
  }
}

TEST(RecursiveDoubling, SendsWhatItStates) {
  for (std::uint32_t ranks = 2; ranks <= 70; ++ranks) {
    const Plan plan = recursive_doubling(ranks);
    const std::uint32_t cores = std::bit_floor(ranks);
    const std::uint32_t helpers = ranks - cores;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t of_core = log2_up(cores);
      const bool paired = rank < 2 * helpers;
      const std::uint64_t expected = !paired ? of_core : rank % 2 == 0 ? of_core + 1 : 1;
      ASSERT_EQ(messages_sent(plan.ranks[rank]), expected) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(RecursiveDoubling, AddsInRankOrderAsABalancedTree) {
  const auto four = addition_order(recursive_doubling(4));
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(*four, std::vector<std::string>(1, "((r0+r1)+(r2+r3))"));
  const auto seven = addition_order(recursive_doubling(7));  // the pairs (0, 1), (2, 3), (4, 5), and rank 6 alone
  ASSERT_TRUE(seven.ok());
  EXPECT_EQ(*seven, std::vector<std::string>(1, "(((r0+r1)+(r2+r3))+((r4+r5)+r6))"));
}

}  // namespace
}  // namespace tutti
