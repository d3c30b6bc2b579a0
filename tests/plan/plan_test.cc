// Tests ChannelBuilder, and Plan as a value type.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include "plans.h"

namespace tutti {
namespace {

TEST(ChannelBuilder, KeepsTheOrderOfOperandsSinkAndSends) {
  ChannelBuilder builder;
  const auto a = builder.receive_from(4, 1);
  const auto b = builder.receive_from(5, 1);
  const auto c = builder.send_to(4, 1);
  builder.step().receive(b).local(Space::kInput, 7).receive(a).store(Space::kOutput, 8).completes().send(c);
  builder.step().receive(a).send(c);
  const Channel channel = std::move(builder).build();

  ASSERT_EQ(channel.steps.size(), 2u);
  const Step& step = channel.steps[0];
  EXPECT_EQ(step.source, (Slice{.space = Space::kInput, .chunk = 7}));
  EXPECT_EQ(step.sink, (Slice{.space = Space::kOutput, .chunk = 8}));
  EXPECT_EQ(step.source_position, 1);
  EXPECT_EQ(step.completes, 1);
  EXPECT_EQ(std::vector(channel.receives(step).begin(), channel.receives(step).end()),
            (std::vector<std::uint16_t>{b, a}));
  EXPECT_EQ(std::vector(channel.sends(step).begin(), channel.sends(step).end()), (std::vector<std::uint16_t>{c}));
  EXPECT_EQ(channel.steps[1].list_begin, 3u);
  EXPECT_EQ(channel.steps[1].source.space, Space::kNone);
}

TEST(ChannelBuilder, FindsAPortAgainAndTellsDirectionsAndLanesApart) {
  ChannelBuilder builder;
  const auto first = builder.send_to(3, 0);
  EXPECT_EQ(builder.send_to(3, 0), first);
  EXPECT_NE(builder.send_to(3, 1), first);
  EXPECT_NE(builder.send_to(4, 0), first);
  EXPECT_NE(builder.receive_from(3, 0), first);
  EXPECT_EQ(std::move(builder).build().ports.size(), 4u);
}

TEST(ChannelBuilder, RecordsWhatAStepWaitsFor) {
  ChannelBuilder builder;
  builder.step().local(Space::kInput, 0).store(Space::kScratch, 0);
  builder.step().local(Space::kScratch, 0).store(Space::kOutput, 0);
  builder.after(2, 5);
  const Channel channel = std::move(builder).build();
  EXPECT_EQ(channel.after, (std::vector<After>{{.step = 1, .other_channel = 2, .other_step = 5}}));
}

TEST(Plan, IsAValueThatComparesAndCopies) {
  const Plan plan = plan_of(Algorithm::kDoubleTree, 5);
  Plan copy = plan;
  EXPECT_EQ(copy, plan);
  copy.ranks[3].channels[0].steps[0].completes ^= 1;
  EXPECT_NE(copy, plan);
}

TEST(Plan, HoldsWhatTheGeneratorGivesEachRank) {
  const Result<Generator> generator = find_generator({.ranks = 6}, Algorithm::kRing);
  ASSERT_TRUE(generator.ok());
  const Plan plan = build_plan(*generator);
  ASSERT_EQ(plan.ranks.size(), 6u);
  for (std::uint32_t rank = 0; rank < 6; ++rank) EXPECT_EQ(plan.ranks[rank], generator->build(generator->shape, rank));
}

}  // namespace
}  // namespace tutti
