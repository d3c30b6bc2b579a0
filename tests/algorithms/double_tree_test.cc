// Tests the shape of the two trees, and the plans that use them.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "algorithms/algorithms.h"
#include "algorithms/generators.h"
#include "plan/plan.h"
#include "plan/verify/verify.h"

namespace tutti {
namespace {

constexpr std::uint32_t kNoRank = TreeLinks::kNoRank;

bool inner(const TreeLinks& place) { return place.lower != kNoRank || place.upper != kNoRank; }

TEST(DoubleTree, EveryInnerRankOfOneTreeIsALeafOfTheOther) {
  for (std::uint32_t ranks = 2; ranks <= 512; ++ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      ASSERT_FALSE(inner(tree_links(0, rank, ranks)) && inner(tree_links(1, rank, ranks)))
          << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(DoubleTree, BothTreesReachEveryRankInLogarithmicDepth) {
  for (std::uint32_t ranks = 1; ranks <= 512; ++ranks) {
    for (std::uint32_t tree = 0; tree < 2; ++tree) {
      std::uint32_t roots = 0;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const TreeLinks place = tree_links(tree, rank, ranks);
        for (const std::uint32_t child : {place.lower, place.upper}) {
          if (child == kNoRank) continue;
          ASSERT_LT(child, ranks);
          ASSERT_EQ(tree_links(tree, child, ranks).parent, rank) << "tree " << tree << " of " << ranks;
        }
        roots += place.parent == kNoRank ? 1 : 0;
        std::uint32_t depth = 0;
        for (std::uint32_t at = rank; tree_links(tree, at, ranks).parent != kNoRank; ++depth) {
          const std::uint32_t parent = tree_links(tree, at, ranks).parent;
          const TreeLinks above = tree_links(tree, parent, ranks);
          ASSERT_TRUE(above.lower == at || above.upper == at);
          at = parent;
        }
        ASSERT_LE(depth, static_cast<std::uint32_t>(std::bit_width(ranks)) - 1) << "tree " << tree << " of " << ranks;
      }
      ASSERT_EQ(roots, 1u) << "tree " << tree << " of " << ranks;
    }
  }
}

TEST(DoubleTree, SendsAtMostTwiceTheMessagePerRankAndEvenlyInAll) {
  for (const std::uint32_t ranks : {2u, 3u, 8u, 13u, 64u}) {
    const Plan plan = build_plan(*find_generator({.ranks = ranks}, Algorithm::kDoubleTree));
    std::size_t all = 0;
    for (const RankPlan& rank : plan.ranks) {
      std::size_t halves = 0;
      for (const Channel& channel : rank.channels) {
        for (const Step& step : channel.steps) halves += step.send_count;
      }
      EXPECT_LE(halves, 4u);
      all += halves;
    }
    EXPECT_EQ(all, 4u * (ranks - 1));
  }
}

TEST(DoubleTree, GroupsRankOrderAsTheTreeIs) {
  const auto even = addition_order(build_plan(*find_generator({.ranks = 4}, Algorithm::kDoubleTree)));
  ASSERT_TRUE(even.ok());
  EXPECT_EQ(*even, (std::vector<std::string>{"(((r0+r1)+r2)+r3)", "(r0+((r1+r2)+r3))"}));
  const auto odd = addition_order(build_plan(*find_generator({.ranks = 3}, Algorithm::kDoubleTree)));
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(*odd, (std::vector<std::string>{"((r0+r1)+r2)", "((r1+r2)+r0)"}));
}

}  // namespace
}  // namespace tutti
