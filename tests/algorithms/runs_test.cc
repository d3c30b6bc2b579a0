// Tests the plans in which a message carries a run of chunks (Messages::kRuns).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <ostream>
#include <string>
#include <vector>

#include "algorithms/generators.h"
#include "plan/collective.h"
#include "plan/verify/mutate.h"
#include "support.h"

namespace tutti {
namespace {

struct Row {
  CollectiveKind kind;
  Algorithm algorithm;
};
std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << to_string(row.kind) << "_" << to_string(row.algorithm);
}

std::vector<Row> rows_with_runs() {
  std::vector<Row> rows;
  for (const AlgorithmRow& row : kAlgorithmTable) {
    if (row.in_runs != nullptr) rows.push_back({row.kind, row.algorithm});
  }
  return rows;
}

Plan plan_of(const Row& row, std::uint32_t ranks, std::uint32_t root, Messages messages) {
  const Collective collective{.kind = row.kind, .ranks = ranks, .root = root};
  return build_plan(*find_generator(collective, row.algorithm, messages));
}

std::uint32_t longest_run(const Plan& plan) {
  std::uint32_t longest = 0;
  for (const RankPlan& rank : plan.ranks) {
    for (const Channel& channel : rank.channels) {
      for (const Step& step : channel.steps) longest = std::max(longest, step.run);
    }
  }
  return longest;
}

class Runs : public ::testing::TestWithParam<Row> {
 protected:
  // Calls visit(plan, ranks) for each number of ranks up to `most`, with the first, a middle and the last rank as root.
  template <class Visit>
  void for_each_plan(std::uint32_t most, Messages messages, Visit visit) const {
    for (std::uint32_t ranks = 1; ranks <= most; ++ranks) {
      std::vector<std::uint32_t> roots{0};
      if (has_root(GetParam().kind) && ranks > 1) roots = {0, ranks / 2, ranks - 1};
      for (const std::uint32_t root : roots) visit(plan_of(GetParam(), ranks, root, messages), ranks);
    }
  }
};

TEST_P(Runs, AreProvedForUpTo40Ranks) {
  for_each_plan(40, Messages::kRuns, [&](const Plan& plan, std::uint32_t ranks) {
    EXPECT_EQ(fault_of(plan), "") << ranks << " ranks, root " << plan.shape.collective.root;
    EXPECT_EQ(longest_run(plan), plan.shape.longest_run) << ranks << " ranks";
  });
}

TEST_P(Runs, AreProvedForManyRanks) {
  for (const std::uint32_t ranks : {100u, 128u, 257u}) {
    EXPECT_TRUE(verify(plan_of(GetParam(), ranks, 0, Messages::kRuns), {.in_place = true, .calls = 1}).ok()) << ranks;
  }
}

// Halving and doubling with helpers: a core rank also sends each result to its helper.
TEST_P(Runs, NeedAsManyMessagesAsRounds) {
  for (const std::uint32_t ranks : {5u, 16u, 37u, 64u}) {
    const Plan plan = plan_of(GetParam(), ranks, 0, Messages::kRuns);
    const Plan blocks = plan_of(GetParam(), ranks, 0, Messages::kOneChunk);
    std::uint64_t most = 0, most_of_blocks = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      most = std::max(most, messages_sent(plan.ranks[rank]));
      most_of_blocks = std::max(most_of_blocks, messages_sent(blocks.ranks[rank]));
    }
    const bool folds = GetParam().algorithm == Algorithm::kHalvingDoubling && !std::has_single_bit(ranks);
    const std::uint32_t of_round = folds ? 3 : GetParam().kind == CollectiveKind::kAllReduce ? 2 : 1;
    EXPECT_LE(most, of_round * log2_up(ranks)) << ranks;
    EXPECT_LT(most, most_of_blocks) << ranks;
  }
}

class RunsThatAdd : public Runs {};

TEST_P(RunsThatAdd, AddInTheSameOrderAsMessagesOfOneChunk) {
  for_each_plan(20, Messages::kRuns, [&](const Plan& plan, std::uint32_t ranks) {
    const Plan blocks = plan_of(GetParam(), ranks, plan.shape.collective.root, Messages::kOneChunk);
    EXPECT_EQ(*addition_order(plan), *addition_order(blocks)) << ranks << " ranks";
  });
}

TEST_P(Runs, TheVerifierRefusesEveryHarmfulMutant) {
  for (const std::uint32_t ranks : {4u, 5u, 7u}) {
    const MutationCount count =
        count_mutations(plan_of(GetParam(), ranks, has_root(GetParam().kind) ? 2 : 0, Messages::kRuns));
    EXPECT_GT(count.refused, 0u);
    EXPECT_EQ(count.missed, 0u) << ranks << " ranks: " << (count.missed_names.empty() ? "" : count.missed_names[0]);
  }
}

const auto kName = [](const auto& test) { return ::testing::PrintToString(test.param); };
INSTANTIATE_TEST_SUITE_P(EveryAlgorithm, Runs, ::testing::ValuesIn(rows_with_runs()), kName);

std::vector<Row> rows_that_add() {
  std::vector<Row> rows = rows_with_runs();
  std::erase_if(rows, [](const Row& row) { return !reduces(row.kind); });
  return rows;
}
INSTANTIATE_TEST_SUITE_P(EveryAlgorithm, RunsThatAdd, ::testing::ValuesIn(rows_that_add()), kName);

TEST(MessagesFor, AreRunsIfTheLongestBufferFitsIntoASlot) {
  const Collective all_reduce{.ranks = 8};
  EXPECT_EQ(messages_for(all_reduce, 65536, 65536), Messages::kRuns);
  EXPECT_EQ(messages_for(all_reduce, 65537, 65536), Messages::kOneChunk);
  const Collective all_gather{.kind = CollectiveKind::kAllGather, .ranks = 8};
  EXPECT_EQ(messages_for(all_gather, 8192, 65536), Messages::kRuns);
  EXPECT_EQ(messages_for(all_gather, 8193, 65536), Messages::kOneChunk);
  const Collective scatter{.kind = CollectiveKind::kScatter, .ranks = 3};
  EXPECT_EQ(messages_for(scatter, 21845, 65536), Messages::kRuns) << "3 blocks";
  EXPECT_EQ(messages_for(scatter, 21846, 65536), Messages::kOneChunk);
}

}  // namespace
}  // namespace tutti
