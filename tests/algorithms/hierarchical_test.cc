// Tests the hierarchical plans, which combine stages inside the machines with stages between them.
#include "algorithms/hierarchical.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "algorithms/generators.h"
#include "plan/verify/mutate.h"
#include "support.h"

namespace tutti {
namespace {

using Sizes = std::vector<std::uint32_t>;
constexpr Algorithm kBoth[] = {Algorithm::kHierarchical, Algorithm::kHierarchicalTree};

void expect_proved(const Sizes& sizes) {
  for (const std::vector<std::uint32_t>& nodes : {side_by_side(sizes), interleaved(sizes)}) {
    for (const Algorithm algorithm : kBoth) {
      EXPECT_EQ(fault_of(plan_of(on_machines(nodes), algorithm)), "")
          << to_string(algorithm) << " on machines of " << testing::PrintToString(sizes) << ", nodes "
          << testing::PrintToString(nodes);
    }
  }
}

TEST(Hierarchical, IsProvedOnEqualMachines) {
  for (std::uint32_t machines = 2; machines <= 6; ++machines) {
    for (std::uint32_t ranks = 1; machines * ranks <= 33; ranks += machines > 3 ? 2 : 1) {
      expect_proved(Sizes(machines, ranks));
    }
  }
}

TEST(Hierarchical, IsProvedOnUnequalMachines) {
  for (const Sizes& sizes : {Sizes{1, 2}, Sizes{1, 4}, Sizes{5, 1}, Sizes{3, 5, 2}, Sizes{2, 3}, Sizes{1, 1, 4},
                             Sizes{4, 1, 1, 3}, Sizes{7, 3}, Sizes{1, 15}, Sizes{8, 8, 7}, Sizes{6, 4, 3, 2, 1}}) {
    expect_proved(sizes);
  }
}

TEST(Hierarchical, BlocksAreProvedOnEqualAndUnequalMachines) {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (const Sizes& sizes : {Sizes{2, 2}, Sizes{2, 2, 2}, Sizes{3, 3}, Sizes{3, 3, 3, 3}, Sizes{2, 2, 2, 2, 2, 2, 2},
                               Sizes{8, 8}, Sizes{8, 8, 8}, Sizes{1, 1, 1}, Sizes{1, 2}, Sizes{3, 5, 2}, Sizes{7}}) {
      for (const std::vector<std::uint32_t>& nodes : {side_by_side(sizes), interleaved(sizes)}) {
        Collective collective = on_machines(nodes);
        collective.kind = kind;
        EXPECT_EQ(fault_of(plan_of(collective, Algorithm::kHierarchical)), "")
            << to_string(kind) << " on machines of " << testing::PrintToString(sizes) << ", nodes "
            << testing::PrintToString(nodes);
      }
    }
  }
}

// Every block must cross to each other machine exactly once, over the link of its own rail. In a flat ring, one link
// would carry all blocks.
TEST(Hierarchical, BlocksCrossByTheWiresOfTheirRails) {
  constexpr std::uint32_t kMachines = 4, kRanks = 3;
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    Collective collective = on_machines(side_by_side(Sizes(kMachines, kRanks)));
    collective.kind = kind;
    const Plan plan = plan_of(collective, Algorithm::kHierarchical);
    for (std::uint32_t rank = 0; rank < kMachines * kRanks; ++rank) {
      std::uint32_t across = 0, inside = 0;
      for (const Channel& channel : plan.ranks[rank].channels) {
        for (const Step& step : channel.steps) {
          for (const std::uint16_t port : channel.sends(step)) {
            const std::uint32_t peer = channel.ports[port].peer;
            if (peer / kRanks == rank / kRanks) {
              ++inside;
            } else {
              ++across;
              EXPECT_EQ(peer, (rank + kRanks) % (kMachines * kRanks));
            }
          }
        }
      }
      EXPECT_EQ(across, kMachines - 1);
      EXPECT_EQ(inside, kMachines * (kRanks - 1));
    }
  }
}

TEST(Hierarchical, IsProvedOnManyMachines) {
  EXPECT_TRUE(verify(plan_of(on_machines(side_by_side(Sizes(33, 1))), Algorithm::kHierarchical)).ok());
  EXPECT_TRUE(verify(plan_of(on_machines(side_by_side(Sizes(32, 8))), Algorithm::kHierarchicalTree),
                     {.in_place = true, .calls = 1})
                  .ok());
  EXPECT_TRUE(
      verify(plan_of(on_machines(side_by_side(Sizes(12, 8))), Algorithm::kHierarchical), {.in_place = true, .calls = 1})
          .ok());
}

TEST(Hierarchical, TakesAnyAllReduceAcrossAndBothWaysInside) {
  using Across = Generator (*)(const Collective&);
  for (const Across across : {Across{ring_all_reduce}, Across{double_tree_all_reduce}, Across{one_shot_all_reduce},
                              Across{two_shot_all_reduce}, Across{halving_doubling_all_reduce},
                              Across{circulant_all_reduce}, Across{hierarchical_all_reduce}}) {
    for (const Inside inside : {Inside::kDirect, Inside::kRing}) {
      for (const Sizes& sizes : {Sizes{3, 3, 3}, Sizes{2, 3, 1, 2, 4}, Sizes{2, 2, 2, 2}, Sizes{1, 1, 1, 1, 1}}) {
        const Generator generator =
            composed_all_reduce(on_machines(side_by_side(sizes)), {.inside = inside, .across = across});
        EXPECT_EQ(fault_of(build_plan(generator)), "") << testing::PrintToString(sizes);
        EXPECT_LE(generator.shape.slots, 2);
        EXPECT_LE(generator.shape.lanes, 7) << "lane 7 is for point to point";
      }
    }
  }
}

TEST(Hierarchical, IsProvedOverManyTilesAndWithMoreSlots) {
  for (const Algorithm algorithm : kBoth) {
    const Plan plan = plan_of(on_machines(side_by_side({3, 2})), algorithm);
    for (const bool in_place : {false, true}) {
      EXPECT_TRUE(verify(plan, {.in_place = in_place, .windows = true, .slots = 5, .tiles = 7, .calls = 3}).ok());
    }
  }
}

TEST(Hierarchical, HasItsStatedRoundsAndBytes) {
  for (const auto& [machines, ranks] : {std::pair{2u, 4u}, {3u, 2u}, {4u, 4u}, {5u, 3u}, {8u, 2u}, {2u, 17u}}) {
    const std::uint32_t all = machines * ranks;
    const Collective collective = on_machines(side_by_side(Sizes(machines, ranks)));
    const Plan ring = plan_of(collective, Algorithm::kHierarchical);
    EXPECT_EQ(rounds_of(ring), 2 + 2 * (machines - 1));
    for (const RankPlan& rank : ring.ranks) {
      EXPECT_EQ(messages_sent(rank) * all, 2 * (all - 1) * ring.shape.chunks) << "2S(p-1)/p";
    }
    const Plan tree = plan_of(collective, Algorithm::kHierarchicalTree);
    EXPECT_LE(rounds_of(tree), (ranks > 16 ? 2 * (ranks - 1) : 2) + 2 * (std::bit_width(machines) - 1));
    for (std::uint32_t rank = 0; rank < all; ++rank) {
      std::uint64_t inside = 0;
      std::uint64_t across = 0;
      for (const Channel& channel : tree.ranks[rank].channels) {
        for (const Step& step : channel.steps) {
          for (const std::uint16_t port : channel.sends(step)) {
            ++(channel.ports[port].peer / ranks == rank / ranks ? inside : across);
          }
        }
      }
      EXPECT_EQ(inside * ranks, 2 * (ranks - 1) * tree.shape.chunks) << "2S(L-1)/L";
      EXPECT_LE(across * ranks, 2 * tree.shape.chunks) << "2S/L";
    }
  }
}

TEST(Hierarchical, OnlyOwnersOfARailTalkAcross) {
  const Collective collective = on_machines(side_by_side({3, 5, 2}));
  const Machines machines(collective);
  EXPECT_EQ(machines.rails(), 5u);
  EXPECT_EQ(machines.owner(4, 0), 1u);
  EXPECT_EQ(machines.owner(4, 1), 7u);
  EXPECT_EQ(machines.owner(4, 2), 8u);
  EXPECT_EQ(machines.rails_of(8), (std::vector<std::uint32_t>{0, 2, 4}));
  const Plan plan = plan_of(collective, Algorithm::kHierarchical);
  for (std::uint32_t rank = 0; rank < collective.ranks; ++rank) {
    for (const Channel& channel : plan.ranks[rank].channels) {
      for (const Port& port : channel.ports) {
        if (collective.nodes[port.peer] == collective.nodes[rank]) continue;
        const auto rails = machines.rails_of(rank);
        EXPECT_TRUE(std::any_of(
            rails.begin(), rails.end(),
            [&](std::uint32_t rail) { return machines.owner(rail, collective.nodes[port.peer]) == port.peer; }))
            << rank << " and " << port.peer;
      }
    }
  }
}

// The machines in `rising` are numbered so that positions can be computed, and those in `falling` so that tables are
// needed. Both must give the same plan.
TEST(Hierarchical, ThePlanDoesNotDependOnHowMachinesAreNumbered) {
  for (const auto& [machines, ranks] : {std::pair{4u, 3u}, {3u, 8u}, {5u, 1u}, {2u, 20u}}) {
    const Collective rising = on_machines(side_by_side(Sizes(machines, ranks)));
    Collective falling = rising;
    for (std::uint32_t& node : falling.nodes) node = machines - 1 - node;
    for (const Algorithm algorithm : kBoth) {
      EXPECT_EQ(plan_of(rising, algorithm).ranks, plan_of(falling, algorithm).ranks);
    }
  }
}

TEST(Hierarchical, TheTreeAddsInRankOrderOverAnEvenNumberOfSmallMachines) {
  const auto order = [](std::uint32_t machines, std::uint32_t ranks) {
    return plan_of(on_machines(side_by_side(Sizes(machines, ranks))), Algorithm::kHierarchicalTree).shape.order;
  };
  EXPECT_EQ(order(4, 3), Order::kByRank);
  EXPECT_EQ(order(3, 3), Order::kCyclic);
  EXPECT_EQ(order(2, 17), Order::kAny) << "a ring inside";
}

TEST(Hierarchical, IsItsStagesAloneWhereThereIsNothingElse) {
  const Plan across = plan_of(on_machines({0, 1, 2}), Algorithm::kHierarchical);
  const Plan ring = plan_of({.ranks = 3}, Algorithm::kRing);
  EXPECT_EQ(across.ranks, ring.ranks);
  const Plan inside = plan_of({.ranks = 3}, Algorithm::kHierarchical);
  EXPECT_EQ(rounds_of(inside), 2u);
  EXPECT_EQ(inside.shape.scratch_chunks, 0u);
  EXPECT_EQ(inside.shape.order, Order::kByRank);
}

TEST(Hierarchical, AddsInCyclicRankOrderWhereMachinesStandSideBySide) {
  const Plan plan = plan_of(on_machines(side_by_side({2, 2})), Algorithm::kHierarchical);
  EXPECT_EQ(plan.shape.order, Order::kCyclic);
  const auto orders = addition_order(plan);
  ASSERT_TRUE(orders.ok());
  EXPECT_EQ(*orders, (std::vector<std::string>{"((r0+r1)+(r2+r3))", "((r2+r3)+(r0+r1))", "((r0+r1)+(r2+r3))",
                                               "((r2+r3)+(r0+r1))"}));
  EXPECT_EQ(plan_of(on_machines({0, 1, 0, 1}), Algorithm::kHierarchical).shape.order, Order::kAny);
}

// The stages of different tiles overlap. The stage inside a machine waits for the stage between machines only before
// it overwrites data that the latter has still to read, and never at the beginning of a tile.
TEST(Hierarchical, ATileStartsInsideBeforeTheLastOneHasGoneAcross) {
  const Plan plan = plan_of(on_machines(side_by_side({2, 2})), Algorithm::kHierarchical);
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_EQ(rank.channels.size(), 3u);
    const Channel& inside = rank.channels[0];
    ASSERT_EQ(inside.after.size(), 2u);
    for (const After& after : inside.after) {
      EXPECT_EQ(after.tiles_before, 1);
      EXPECT_EQ(after.other_channel, 1);
      EXPECT_EQ(inside.steps[after.step].sink.space, Space::kScratch);
      EXPECT_GT(after.step, 0u);
    }
  }
}

TEST(Hierarchical, MutationsAreRefusedOrHarmless) {
  for (const Sizes& sizes : {Sizes{2, 2}, Sizes{1, 2}, Sizes{3, 2}}) {
    for (const Algorithm algorithm : kBoth) {
      const MutationCount count = count_mutations(plan_of(on_machines(side_by_side(sizes)), algorithm));
      EXPECT_EQ(count.missed, 0u) << testing::PrintToString(sizes) << testing::PrintToString(count.missed_names);
      EXPECT_GT(count.refused, 100u);
    }
  }
}

TEST(Hierarchical, RefusesMachinesOfOtherRanks) {
  const auto refused = find_generator({.ranks = 3, .nodes = {0, 1}}, Algorithm::kHierarchical);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("machines of 2 ranks, but there are 3 ranks"));
}

}  // namespace
}  // namespace tutti
