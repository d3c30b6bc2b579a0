// Tests the plans of all collectives except all_reduce and barrier. Each plan is verified, has the properties that
// its source file states, and is refused when it is broken on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "algorithms/generators.h"
#include "every_plan.h"
#include "plan/verify/mutate.h"
#include "plan/verify/verify.h"

namespace tutti {
namespace {

using testing::HasSubstr;

class EveryPlan : public testing::TestWithParam<Pair> {};

TEST_P(EveryPlan, IsProvedFor1To17RanksAndEveryRoot) {
  for (std::uint32_t ranks = 1; ranks <= 17; ++ranks) {
    for (const std::uint32_t root : all_roots(GetParam(), ranks)) {
      const Result<VerifyReport> report = verify_all(plan_of(GetParam(), ranks, root));
      ASSERT_TRUE(report.ok()) << ranks << " ranks, root " << root << ": " << report.error().message;
    }
  }
}

TEST_P(EveryPlan, IsProvedUpTo64Ranks) {
  for (const std::uint32_t ranks : {18u, 23u, 31u, 32u, 33u, 47u, 63u, 64u}) {
    const std::uint32_t last = has_root(GetParam().kind) ? ranks - 1 : 0;
    for (const std::uint32_t root : std::set{0u, (last + 1) / 2, last}) {
      const Plan plan = plan_of(GetParam(), ranks, root);
      const Result<VerifyReport> staged = verify(plan, {.in_place = true});
      ASSERT_TRUE(staged.ok()) << ranks << " ranks, root " << root << ": " << staged.error().message;
    }
    const Result<VerifyReport> report = verify_all(plan_of(GetParam(), ranks, (last + 1) / 2));
    ASSERT_TRUE(report.ok()) << ranks << " ranks: " << report.error().message;
  }
}

TEST_P(EveryPlan, IsProvedWithMoreSlotsTilesAndCalls) {
  for (const std::uint32_t ranks : {2u, 3u, 6u, 11u}) {
    const Plan plan = plan_of(GetParam(), ranks);
    EXPECT_LE(plan.shape.slots, 2) << "every transport holds 2 messages";
    EXPECT_LE(plan.shape.lanes, 7) << "lane 7 is for point to point";
    for (const std::uint16_t extra : {0, 1, 2, 7}) {
      const auto slots = static_cast<std::uint16_t>(plan.shape.slots + extra);
      for (const bool in_place : {false, true}) {
        const Result<VerifyReport> report =
            verify(plan, {.in_place = in_place, .windows = true, .slots = slots, .tiles = 4, .calls = 3});
        EXPECT_TRUE(report.ok()) << ranks << " ranks, " << slots << " slots: " << report.error().message;
      }
    }
  }
}

// One slot must be too few for some number of ranks. For others, a round with few messages may need fewer slots.
TEST_P(EveryPlan, NeedsItsStatedSlots) {
  bool deadlocks_with_less = false;
  for (std::uint32_t ranks = 3; ranks <= 12; ++ranks) {
    const Plan plan = plan_of(GetParam(), ranks);
    deadlocks_with_less |= plan.shape.slots == 1 || !verify(plan, {.slots = 1}).ok();
  }
  EXPECT_TRUE(deadlocks_with_less);
}

TEST_P(EveryPlan, CopiesForOneRank) {
  const Plan plan = plan_of(GetParam(), 1);
  EXPECT_EQ(messages_sent(plan.ranks[0]), 0u);
  std::size_t steps = 0;
  for (const Channel& channel : plan.ranks[0].channels) steps += channel.steps.size();
  EXPECT_EQ(steps, plan.shape.chunks);
}

TEST_P(EveryPlan, HasNoMutantThatTheVerifierMisses) {
  for (std::uint32_t ranks = 1; ranks <= 5; ++ranks) {
    for (const std::uint32_t root : std::set{0u, has_root(GetParam().kind) ? ranks - 1 : 0}) {
      const MutationCount count = count_mutations(plan_of(GetParam(), ranks, root));
      EXPECT_EQ(count.missed, 0u) << ranks << " ranks, root " << root << ": "
                                  << testing::PrintToString(count.missed_names);
      EXPECT_GT(count.refused, 10u);
      EXPECT_LT(count.harmless, count.refused);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryPlan, testing::ValuesIn(every_pair()),
                         [](const auto& parameter) { return name_of(parameter.param); });

TEST(Collectives, EachHasItsAlgorithms) {
  using Kind = CollectiveKind;
  using enum Algorithm;
  const auto has = [](Kind kind, std::initializer_list<Algorithm> algorithms) {
    for (const Algorithm algorithm : algorithms) {
      EXPECT_THAT(algorithms_of(kind), testing::Contains(algorithm)) << to_string(kind);
    }
  };
  has(Kind::kBroadcast, {kBinomial, kChain, kTree, kDoubleTree, kDirect, kRing});
  has(Kind::kReduce, {kBinomial, kChain, kTree, kDoubleTree, kDirect, kRing});
  has(Kind::kAllGather, {kRing, kDirect});
  has(Kind::kReduceScatter, {kRing, kDirect});
  has(Kind::kAllToAll, {kPairwise, kDirect, kBruck});
  has(Kind::kGather, {kBinomial, kDirect});
  has(Kind::kScatter, {kBinomial, kDirect});
}

TEST(Collectives, RefuseRootsAndNumbersOfRanksThatTheyCannotServe) {
  EXPECT_THAT(
      find_generator({.kind = CollectiveKind::kBroadcast, .ranks = 4, .root = 4}, Algorithm::kChain).error().message,
      HasSubstr("root 4 is outside 0..3"));
  EXPECT_FALSE(find_generator({.kind = CollectiveKind::kAllGather, .ranks = 4, .root = 1}, Algorithm::kRing).ok());
  const auto many = find_generator({.kind = CollectiveKind::kAllToAll, .ranks = 2000}, Algorithm::kPairwise);
  ASSERT_FALSE(many.ok());
  EXPECT_THAT(many.error().message, HasSubstr("at most 1024 ranks, not 2000; choose bruck"));
}

// ---- the numbers of messages that the algorithms' source files state: consecutive ones, and those of each rank
// ----

// The numbers of messages of a plan. One message is one chunk.
struct Stated {
  std::uint32_t longest_path = 0;
  std::uint32_t root_sends = 0;  // number of chunks that the root sends; rank 0 if there is no root
  std::uint32_t most_sent = 0;   // the most that any rank sends
  std::uint32_t all_sent = 0;
};

std::uint32_t floor_log2(std::uint32_t x) { return static_cast<std::uint32_t>(std::bit_width(x)) - 1; }
std::uint32_t ceil_log2(std::uint32_t x) { return static_cast<std::uint32_t>(std::bit_width(x - 1)); }

Stated measured(const Plan& plan) {
  Stated found{.longest_path = LongestPath(plan).messages(),
               .root_sends = messages_sent(plan.ranks[plan.shape.collective.root])};
  for (const RankPlan& rank : plan.ranks) {
    found.most_sent = std::max(found.most_sent, messages_sent(rank));
    found.all_sent += messages_sent(rank);
  }
  return found;
}

void expect_stated(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks, const Stated& stated) {
  for (const std::uint32_t root : std::set{0u, has_root(kind) ? ranks / 3 : 0}) {
    const Stated found = measured(plan_of({kind, algorithm}, ranks, root));
    const auto where = testing::Message() << name_of({kind, algorithm}) << ", " << ranks << " ranks, root " << root;
    EXPECT_EQ(found.longest_path, stated.longest_path) << where;
    EXPECT_EQ(found.root_sends, stated.root_sends) << where;
    EXPECT_EQ(found.most_sent, stated.most_sent) << where;
    EXPECT_EQ(found.all_sent, stated.all_sent) << where;
  }
}

class Messages : public testing::TestWithParam<std::uint32_t> {};

TEST_P(Messages, OfABroadcastAreAsStated) {
  const std::uint32_t p = GetParam();
  const auto stated = [&](Algorithm algorithm, const Stated& messages) {
    expect_stated(CollectiveKind::kBroadcast, algorithm, p, messages);
  };
  stated(Algorithm::kBinomial, {floor_log2(p), ceil_log2(p), ceil_log2(p), p - 1});
  stated(Algorithm::kChain, {p - 1, 1, 1, p - 1});
  const std::uint32_t deep = floor_log2(p - 1) + 1;
  stated(Algorithm::kTree, {deep, 1, p > 3 ? 2u : 1u, p - 1});
  stated(Algorithm::kDoubleTree, {deep, 2, 2, 2 * (p - 1)});  // each half of the data uses one tree
  stated(Algorithm::kDirect, {1, p - 1, p - 1, p - 1});
  stated(Algorithm::kRing, {p - 1, 2 * (p - 1), 2 * (p - 1), p * (p - 1)});
}

TEST_P(Messages, OfAReduceAreAsStated) {
  const std::uint32_t p = GetParam();
  const auto stated = [&](Algorithm algorithm, const Stated& messages) {
    expect_stated(CollectiveKind::kReduce, algorithm, p, messages);
  };
  stated(Algorithm::kBinomial, {floor_log2(p), 0, 1, p - 1});
  stated(Algorithm::kChain, {p - 1, 0, 1, p - 1});
  stated(Algorithm::kTree, {floor_log2(p - 1) + 1, 0, 1, p - 1});
  stated(Algorithm::kDoubleTree, {floor_log2(p - 1) + 1, 0, 2, 2 * (p - 1)});
  stated(Algorithm::kDirect, {1, 0, 1, p - 1});
  stated(Algorithm::kRing, {p, p - 1, p, p * (p - 1) + p - 1});
}

TEST_P(Messages, WithoutARootAreAsStated) {
  const std::uint32_t p = GetParam();
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    expect_stated(kind, Algorithm::kRing, p, {p - 1, p - 1, p - 1, p * (p - 1)});
    expect_stated(kind, Algorithm::kDirect, p, {1, p - 1, p - 1, p * (p - 1)});
  }
  expect_stated(CollectiveKind::kAllToAll, Algorithm::kDirect, p, {1, p - 1, p - 1, p * (p - 1)});
  std::uint32_t bits = 0;
  for (std::uint32_t block = 1; block < p; ++block) bits += static_cast<std::uint32_t>(std::popcount(block));
  const Stated bruck = measured(plan_of({CollectiveKind::kAllToAll, Algorithm::kBruck}, p));
  EXPECT_LE(bruck.longest_path, ceil_log2(p));
  EXPECT_EQ(bruck.most_sent, bits);
  EXPECT_EQ(bruck.all_sent, p * bits);
  const RankPlan any_rank = plan_of({CollectiveKind::kAllToAll, Algorithm::kBruck}, p).ranks[p / 2];
  for (const Channel& channel : any_rank.channels) {
    EXPECT_EQ(channel.ports.size(), ceil_log2(p)) << "peers in each direction";
  }
  const Stated pairwise = measured(plan_of({CollectiveKind::kAllToAll, Algorithm::kPairwise}, p));
  EXPECT_LE(pairwise.longest_path, p);
  EXPECT_EQ(pairwise.most_sent, p - 1);
  EXPECT_EQ(pairwise.all_sent, p * (p - 1));
}

TEST_P(Messages, OfGatherAndScatterAreAsStated) {
  const std::uint32_t p = GetParam();
  expect_stated(CollectiveKind::kGather, Algorithm::kDirect, p, {1, 0, 1, p - 1});
  expect_stated(CollectiveKind::kScatter, Algorithm::kDirect, p, {1, p - 1, p - 1, p - 1});
  std::uint32_t hops = 0;  // sum over all blocks
  for (std::uint32_t place = 1; place < p; ++place) hops += static_cast<std::uint32_t>(std::popcount(place));
  const Plan gather = plan_of({CollectiveKind::kGather, Algorithm::kBinomial}, p);
  const Plan scatter = plan_of({CollectiveKind::kScatter, Algorithm::kBinomial}, p);
  EXPECT_EQ(LongestPath(gather).messages(), floor_log2(p));
  EXPECT_EQ(LongestPath(scatter).messages(), floor_log2(p));
  EXPECT_EQ(measured(gather).all_sent, hops);
  EXPECT_EQ(measured(scatter).all_sent, hops);
  EXPECT_LE(measured(gather).most_sent, p / 2);
  EXPECT_EQ(measured(scatter).most_sent, p - 1);
  EXPECT_EQ(messages_sent(scatter.ranks[0]), p - 1);
  EXPECT_EQ(gather.ranks[0].channels[0].ports.size(), ceil_log2(p)) << "the root's peers";
  EXPECT_EQ(scatter.ranks[0].channels[0].ports.size(), ceil_log2(p));
}

TEST_P(Messages, OfABarrierAreAsStated) {
  const std::uint32_t p = GetParam();
  expect_stated(CollectiveKind::kBarrier, Algorithm::kOneShot, p, {1, p - 1, p - 1, p * (p - 1)});
  const Stated trees = measured(plan_of({CollectiveKind::kBarrier, Algorithm::kDoubleTree}, p));
  EXPECT_EQ(trees.longest_path, 2 * floor_log2(p));
  EXPECT_LE(trees.most_sent, 4u);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Messages, testing::Values(2u, 3u, 4u, 5u, 8u, 13u, 16u, 31u, 100u),
                         testing::PrintToStringParamName());

TEST(Pairwise, ExchangesWithOnePartnerARound) {
  for (const std::uint32_t ranks : {4u, 5u}) {
    const Plan plan = plan_of({CollectiveKind::kAllToAll, Algorithm::kPairwise}, ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const Channel& channel = plan.ranks[rank].channels[0];
      ASSERT_EQ(channel.steps.size(), 2 * ranks - 1);
      std::set<std::uint32_t> partners;
      for (std::size_t s = 0; s < channel.steps.size(); ++s) {
        if (channel.steps[s].send_count == 0) continue;
        const std::uint32_t partner = channel.ports[channel.sends(channel.steps[s])[0]].peer;
        EXPECT_EQ(channel.ports[channel.receives(channel.steps[s + 1])[0]].peer, partner);
        EXPECT_TRUE(partners.insert(partner).second);
      }
      EXPECT_EQ(partners.size(), ranks - 1);
    }
  }
}

std::string sum_from(std::uint32_t first, std::uint32_t ranks) {
  std::string sum(ranks - 1, '(');
  for (std::uint32_t i = 0; i < ranks; ++i) {
    sum += (i > 0 ? "+r" : "r") + std::to_string((first + i) % ranks) + (i > 0 ? ")" : "");
  }
  return sum;
}

TEST(Reduce, AddsInItsStatedOrder) {
  const auto order = [](Algorithm algorithm, std::uint32_t ranks, std::uint32_t root) {
    return *addition_order(plan_of({CollectiveKind::kReduce, algorithm}, ranks, root));
  };
  for (const std::uint32_t root : {0u, 2u, 4u}) {
    EXPECT_EQ(order(Algorithm::kDirect, 5, root)[0], sum_from(0, 5));
    EXPECT_EQ(order(Algorithm::kChain, 5, root)[0], sum_from((root + 1) % 5, 5));
    for (std::uint32_t chunk = 0; chunk < 5; ++chunk) {
      EXPECT_EQ(order(Algorithm::kRing, 5, root)[chunk], sum_from(chunk, 5)) << "whatever the root is";
    }
  }
  EXPECT_EQ(order(Algorithm::kBinomial, 4, 0)[0], "((r0+r1)+(r2+r3))");
  EXPECT_EQ(order(Algorithm::kBinomial, 4, 1)[0], "((r1+r2)+(r3+r0))");
  EXPECT_EQ(order(Algorithm::kTree, 4, 0)[0], "(r0+((r1+r2)+r3))");
}

TEST(ReduceScatter, AddsInItsStatedOrder) {
  const auto ring = *addition_order(plan_of({CollectiveKind::kReduceScatter, Algorithm::kRing}, 4));
  const auto direct = *addition_order(plan_of({CollectiveKind::kReduceScatter, Algorithm::kDirect}, 4));
  for (std::uint32_t block = 0; block < 4; ++block) {
    EXPECT_EQ(ring[block], sum_from((block + 1) % 4, 4));
    EXPECT_EQ(direct[block], sum_from(0, 4));
  }
}

}  // namespace
}  // namespace tutti
