// Tests that choose_algorithm() always returns an algorithm that has a plan for the call.
#include "selection/algorithm_selector.h"

#include <gtest/gtest.h>

#include "algorithms/algorithms.h"
#include "plan/collective.h"

namespace tutti::detail {
namespace {

std::vector<std::uint32_t> dealt(std::uint32_t ranks, std::uint32_t machines) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) nodes.push_back(rank * machines / ranks);
  return machines == 1 ? std::vector<std::uint32_t>() : nodes;
}

TEST(Choose, AlwaysFindsAPlan) {
  for (const CollectiveKind kind : all_collectives()) {
    for (const std::uint32_t ranks : {1u, 2u, 3u, 8u, 17u, 64u, 256u, 257u, 1000u, 1024u, 1025u, 5000u}) {
      for (const std::uint32_t machines : {1u, 2u, ranks}) {
        if (machines > ranks) continue;
        for (const std::uint64_t bytes : {0ull, 8ull, 8192ull, 8193ull, 40'000ull, 1ull << 30}) {
          Collective collective;
          collective.kind = kind;
          collective.ranks = ranks;
          collective.nodes = dealt(ranks, machines);
          for (const SelectionQuery choice :
               {SelectionQuery{.bytes = bytes}, SelectionQuery{.bytes = bytes, .memory = false},
                SelectionQuery{.bytes = bytes, .attached = true}}) {
            const auto generator = find_generator(collective, choose_algorithm(collective, choice));
            EXPECT_TRUE(generator.ok()) << to_string(kind) << " " << ranks << " ranks on " << machines << ", " << bytes
                                        << " bytes: " << generator.error().message;
          }
        }
      }
    }
  }
}

TEST(Choose, KeepsRankOrderWhereItIsAskedFor) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter}) {
    for (const std::uint32_t ranks : {2u, 5u, 64u}) {
      for (const std::uint64_t bytes : {8ull, 1ull << 20}) {
        Collective collective;
        collective.kind = kind;
        collective.ranks = ranks;
        const auto generator =
            find_generator(collective, choose_algorithm(collective, {.bytes = bytes, .in_rank_order = true}));
        ASSERT_TRUE(generator.ok());
        EXPECT_EQ(generator->shape.order, Order::kByRank);
      }
    }
  }
}

// A step of a GPU takes longer than one of a core, so the fewer steps of one-shot pay off for longer calls, above all
// if no link carries the inputs. The choice does not depend on the transport of the host.
TEST(Choose, OneShotForLongerCallsOnGpus) {
  Collective collective;
  collective.kind = CollectiveKind::kAllReduce;
  collective.ranks = 8;
  const auto longest = [&](GpuUse gpus, bool memory, bool in_rank_order) {
    std::uint64_t bytes = 1;
    const auto chosen = [&](std::uint64_t at) {
      return choose_algorithm(collective,
                              {.bytes = at, .in_rank_order = in_rank_order, .memory = memory, .gpus = gpus});
    };
    while (chosen(2 * bytes) == Algorithm::kOneShot) bytes *= 2;
    EXPECT_EQ(chosen(4 * bytes), Algorithm::kTwoShot);
    return bytes;
  };
  for (const bool memory : {true, false}) {
    for (const bool in_rank_order : {true, false}) {
      EXPECT_EQ(longest(GpuUse::kOneGpu, memory, in_rank_order), 256u * 1024);
      EXPECT_EQ(longest(GpuUse::kSeveralGpus, memory, in_rank_order), 32u * 1024);
    }
  }
  EXPECT_EQ(longest(GpuUse::kNone, true, false), 8u * 1024);
}

}  // namespace
}  // namespace tutti::detail
