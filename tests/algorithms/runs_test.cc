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

// The largest number of messages that a rank sends, or that a rank receives, in one tile.
std::uint64_t most_messages(const Plan& plan) {
  std::uint64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    std::uint64_t sent = 0, received = 0;
    for (const Channel& channel : rank.channels) {
      for (const Step& step : channel.steps) {
        sent += step.send_count;
        received += step.receive_count;
      }
    }
    most = std::max({most, sent, received});
  }
  return most;
}

// A rank sends one message in each round, and the root of a binomial tree exchanges one with each child. In halving and
// doubling, if the number of ranks is not a power of two, the busiest rank is a core rank with a helper. With log2 Q
// rounds in each half, it sends 2 log2 Q messages to its partners. It also sends its helper one message with the result
// of the halving, and one in each round of the doubling.
TEST_P(Runs, NeedAsManyMessagesAsRounds) {
  for (const std::uint32_t ranks : {5u, 16u, 37u, 64u}) {
    const std::uint32_t halves = GetParam().kind == CollectiveKind::kAllReduce ? 2 : 1;
    std::uint64_t expected = halves * log2_up(ranks);
    if (GetParam().algorithm == Algorithm::kHalvingDoubling && !std::has_single_bit(ranks)) {
      expected = 3 * log2_up(std::bit_floor(ranks)) + 1;
    }
    EXPECT_EQ(most_messages(plan_of(GetParam(), ranks, 0, Messages::kRuns)), expected) << ranks;
    EXPECT_LT(expected, most_messages(plan_of(GetParam(), ranks, 0, Messages::kOneChunk))) << ranks;
  }
}

class RunsThatAdd : public Runs {};

TEST_P(RunsThatAdd, AddInTheSameOrderAsMessagesOfOneChunk) {
  for_each_plan(20, Messages::kRuns, [&](const Plan& plan, std::uint32_t ranks) {
    const Plan one_chunk = plan_of(GetParam(), ranks, plan.shape.collective.root, Messages::kOneChunk);
    EXPECT_EQ(*addition_order(plan), *addition_order(one_chunk)) << ranks << " ranks";
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
  const auto of = [](CollectiveKind kind, std::uint32_t ranks, std::uint64_t block_bytes, std::uint64_t slot_bytes) {
    return messages_for({.kind = kind, .ranks = ranks}, block_bytes, {slot_bytes, false});
  };
  EXPECT_EQ(of(CollectiveKind::kAllReduce, 8, 65536, 65536), Messages::kRuns);
  EXPECT_EQ(of(CollectiveKind::kAllReduce, 8, 65537, 65536), Messages::kOneChunk);
  EXPECT_EQ(of(CollectiveKind::kAllGather, 8, 8192, 65536), Messages::kRuns);
  EXPECT_EQ(of(CollectiveKind::kAllGather, 8, 8193, 65536), Messages::kOneChunk);
  EXPECT_EQ(of(CollectiveKind::kScatter, 3, 21845, 65536), Messages::kRuns) << "3 blocks";
  EXPECT_EQ(of(CollectiveKind::kScatter, 3, 21846, 65536), Messages::kOneChunk);
  EXPECT_EQ(of(CollectiveKind::kAllReduce, 8, kMostRunBytes, 1 << 20), Messages::kRuns);
  EXPECT_EQ(of(CollectiveKind::kAllReduce, 8, kMostRunBytes + 1, 1 << 20), Messages::kOneChunk);
}

// In shared memory, the receiver can read a long chunk in the sender's buffer, without a copy (plan/windows.h).
TEST(MessagesFor, AreOneChunkIfItMayTravelWithoutACopy) {
  const auto of = [](CollectiveKind kind, std::uint64_t block_bytes) {
    return messages_for({.kind = kind, .ranks = 8}, block_bytes, {1 << 17, true});
  };
  EXPECT_EQ(of(CollectiveKind::kAllReduce, 8 * 4095), Messages::kRuns);
  EXPECT_EQ(of(CollectiveKind::kAllReduce, 8 * 4096), Messages::kOneChunk);
  EXPECT_EQ(of(CollectiveKind::kGather, 4095), Messages::kRuns);
  EXPECT_EQ(of(CollectiveKind::kGather, 4096), Messages::kOneChunk);
}

}  // namespace
}  // namespace tutti
