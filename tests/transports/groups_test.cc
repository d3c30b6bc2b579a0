// Tests of local_groups(): which ranks share memory. All ranks compute it from the same reachability matrix.
#include "transports/shm/groups.h"

#include <gtest/gtest.h>

#include <random>

namespace tutti {
namespace {

using Groups = std::vector<std::uint32_t>;
using Matrix = std::vector<std::vector<bool>>;

TEST(LocalGroups, AreTheMachinesWhereEverybodyReachesItsOwn) {
  EXPECT_EQ(local_groups({}), Groups{});
  EXPECT_EQ(local_groups({{true}}), Groups{0});
  EXPECT_EQ(local_groups({{1, 0, 1, 0}, {0, 1, 0, 1}, {1, 0, 1, 0}, {0, 1, 0, 1}}), (Groups{0, 1, 0, 1}));
  EXPECT_EQ(local_groups({{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}), (Groups{0, 0, 0}));
  EXPECT_EQ(local_groups({{1, 0}, {0, 1}}), (Groups{0, 1}));
}

TEST(LocalGroups, NeedBothDirections) { EXPECT_EQ(local_groups({{1, 1, 0}, {0, 1, 0}, {0, 0, 1}}), (Groups{0, 1, 2})); }

TEST(LocalGroups, WhereReachIsNotTransitiveEachJoinsTheLowestThatTakesIt) {
  EXPECT_EQ(local_groups({{1, 1, 0}, {1, 1, 1}, {0, 1, 1}}), (Groups{0, 0, 2}))
      << "1 reaches 0 and 2, but 0 does not reach 2";
  EXPECT_EQ(local_groups({{1, 0, 1, 1}, {0, 1, 1, 1}, {1, 1, 1, 0}, {1, 1, 0, 1}}), (Groups{0, 1, 0, 1}));
}

TEST(LocalGroups, WhatIsMissingIsNotReachedAndNobodyNeedsToReachItself) {
  EXPECT_EQ(local_groups({{}, {true, false}, {}}), (Groups{0, 1, 2}));
  EXPECT_EQ(local_groups({{false, true}, {true, false}}), (Groups{0, 0}));
}

// For any matrix, a group's number is its lowest rank, and all ranks in a group reach each other.
TEST(LocalGroups, AlwaysHoldOnlyRanksThatReachEachOther) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t ranks = 1 + random() % 12;
    Matrix reaches(ranks, std::vector<bool>(ranks));
    for (auto& row : reaches) {
      for (std::size_t to = 0; to < ranks; ++to) row[to] = random() % 4 != 0;
    }
    const Groups groups = local_groups(reaches);
    ASSERT_EQ(groups.size(), ranks);
    for (std::uint32_t a = 0; a < ranks; ++a) {
      EXPECT_LE(groups[a], a) << "round " << round;
      EXPECT_EQ(groups[groups[a]], groups[a]) << "round " << round;
      for (std::uint32_t b = 0; b < ranks; ++b) {
        EXPECT_TRUE(a == b || groups[a] != groups[b] || reaches[a][b]) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
