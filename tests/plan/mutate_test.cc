// Tests the mutations of plans, and the interpreter, which decides whether a mutant still computes its collective.
#include "plan/verify/mutate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "plan/verify/interpret.h"
#include "plan/verify/verify.h"
#include "plans.h"

namespace tutti {
namespace {

class Mutations : public testing::TestWithParam<Algorithm> {};

TEST_P(Mutations, AreRefusedOrHarmless) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 5u, 8u}) {
    const MutationCount count = count_mutations(plan_of(GetParam(), ranks));
    EXPECT_EQ(count.missed, 0u) << ranks << " ranks: " << testing::PrintToString(count.missed_names);
    EXPECT_EQ(count.tried, count.refused + count.harmless + count.missed);
    EXPECT_GT(count.refused, 20u);
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Mutations, testing::ValuesIn(algorithms_of(CollectiveKind::kAllReduce)),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

TEST(Mutants, AreAllDifferentFromTheirPlan) {
  const Plan plan = plan_of(Algorithm::kTwoShot, 3);
  std::set<std::string> names;
  for_each_mutant(plan, [&](const Plan& mutant, const std::string& name) {
    EXPECT_NE(mutant, plan) << name;
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
  });
  EXPECT_THAT(names,
              testing::IsSupersetOf({"rank 0 channel 0 step 0: source chunk 1 -> 2", "rank 2 channel 0 step 4: deleted",
                                     "rank 1 channel 0 step 2: source_position 1 -> 0"}));
}

TEST(Mutants, LoseTheirOrderOfChannels) {
  ChannelBuilder writer;
  writer.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  ChannelBuilder reader;
  reader.step().local(Space::kOutput, 0).store(Space::kScratch, 0);
  reader.after(0, 0);
  const Plan plan = one_rank({std::move(writer).build(), std::move(reader).build()});
  bool deleted = false;
  for_each_mutant(plan, [&](const Plan& mutant, const std::string& name) {
    if (name != "rank 0 channel 1 step 0: after 0 deleted") return;
    deleted = true;
    EXPECT_FALSE(verify(mutant).ok());
  });
  EXPECT_TRUE(deleted);
}

// The interpreter must detect a changed order of additions. Otherwise it would judge every mutant as harmless.
TEST(Interpreter, TellsTheOrderOfAdditionApart) {
  const Plan by_rank = plan_of(Algorithm::kOneShot, 5);
  Plan other = by_rank;
  for (std::uint32_t rank = 0; rank < 5; ++rank) step_of(other, rank, 1).source_position = 0;
  const auto a = interpret(by_rank, {});
  const auto b = interpret(other, {});
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(a->size(), b->size());
  EXPECT_NE(std::memcmp(a->data(), b->data(), a->size() * sizeof(float)), 0);
}

TEST(Interpreter, GivesTheSameBitsForEveryInterleaving) {
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    const Plan plan = plan_of(algorithm, 5);
    for (const bool in_place : {false, true}) {
      const auto first = interpret(plan, {.in_place = in_place, .tiles = 3, .calls = 3, .seed = 1});
      ASSERT_TRUE(first.ok()) << first.error().message;
      for (std::uint64_t seed = 2; seed < 8; ++seed) {
        EXPECT_EQ(*first, *interpret(plan, {.in_place = in_place, .tiles = 3, .calls = 3, .seed = seed}))
            << "seed " << seed;
      }
    }
  }
}

TEST(Interpreter, NoticesWhatDoesNotEndOrIsLeftBehind) {
  Plan stuck = two_ranks();
  for (RankPlan& rank : stuck.ranks) std::swap(rank.channels[0].steps[0], rank.channels[0].steps[1]);
  EXPECT_FALSE(interpret(stuck, {}).ok());
  Plan behind = two_ranks();
  behind.shape.slots = 8;
  auto& steps = behind.ranks[0].channels[0].steps;
  steps.insert(steps.begin(), steps[0]);
  EXPECT_FALSE(interpret(behind, {}).ok());
}

}  // namespace
}  // namespace tutti
