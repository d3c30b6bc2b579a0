// Tests the parts of the verifier that execute a plan: values and deadlocks.
#include "plan/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plans.h"

namespace tutti {
namespace {

using testing::HasSubstr;

void expect_refused(const Plan& plan, const std::string& cause, const VerifyOptions& options = {}) {
  const Result<VerifyReport> report = verify(plan, options);
  ASSERT_FALSE(report.ok()) << "expected: " << cause;
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidPlan);
  EXPECT_THAT(report.error().message, HasSubstr(cause));
}

TEST(Verify, CountsStepsAndMessages) {
  const Result<VerifyReport> report = verify(plan_of(Algorithm::kRing, 4), {.tiles = 3, .calls = 5});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->steps, 4u * 7 * 3 * 5);
  EXPECT_EQ(report->messages, 4u * 6 * 3 * 5);
}

TEST(Verify, NamesWhoWaitsForWhatInADeadlock) {
  for (const std::uint32_t ranks : {2u, 3u, 8u}) {
    const Plan plan = plan_of(Algorithm::kRing, ranks);
    expect_refused(plan, "deadlock: rank 0 channel 0 step 1 waits for one of the 1 slots to rank 1 on lane 0",
                   {.slots = 1});
    EXPECT_TRUE(verify(plan, {.slots = 2}).ok());
    EXPECT_TRUE(verify(plan, {.slots = 9}).ok());
  }
}

TEST(Verify, RefusesRanksThatBothReceiveFirst) {
  Plan plan = two_ranks();
  for (RankPlan& rank : plan.ranks) std::swap(rank.channels[0].steps[0], rank.channels[0].steps[1]);
  expect_refused(plan,
                 "deadlock: rank 0 channel 0 step 0 waits for a message from rank 1 on lane 0; 1 more channels wait");
}

TEST(Verify, RefusesChannelsThatWaitForEachOther) {
  ChannelBuilder first;
  first.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  first.after(1, 0);
  ChannelBuilder second;
  second.step().local(Space::kInput, 0).store(Space::kScratch, 0);
  second.after(0, 0);
  Plan plan = one_rank({std::move(first).build(), std::move(second).build()});
  plan.ranks[0].channels[1].steps[0].completes = 1;
  expect_refused(plan, "deadlock: rank 0 channel 0 step 0 waits for step 0 of channel 1");
}

TEST(Verify, RefusesAMissingContribution) {
  Plan plan = plan_of(Algorithm::kRing, 4);
  // the step adds in[1] to the received chunk and sends the sum; here the addition is removed
  Step& step = step_of(plan, 2, 1);
  step.source = {};
  step.source_position = 0;
  expect_refused(plan, "is marked as completing chunk 1, which has 3 of 4 contributions");
}

TEST(Verify, RefusesADoubleContribution) {
  Plan plan = plan_of(Algorithm::kRing, 3);
  // the complete value is sent round again, and the inputs are added a second time
  for (RankPlan& rank : plan.ranks) {
    Step& step = rank.channels[0].steps[3];
    step.source = {.space = Space::kInput, .chunk = step.sink.chunk};
    step.source_position = 1;
  }
  expect_refused(plan, "counts the contribution of rank");
}

TEST(Verify, RefusesMixedChunks) {
  Plan plan = plan_of(Algorithm::kRing, 4);
  step_of(plan, 1, 1).source.chunk = 3;
  expect_refused(plan, "rank 1 channel 0 step 1: adds chunk 3 to chunk 0");
}

TEST(Verify, RefusesAnOutputChunkInTheWrongPlace) {
  Plan plan = plan_of(Algorithm::kRing, 4);
  Step& step = step_of(plan, 1, 3);
  step.sink.chunk = (step.sink.chunk + 1) % 4;
  expect_refused(plan, "rank 1 channel 0 step 3: stores chunk 2 to out[3]");
}

TEST(Verify, RefusesAnOutputChunkThatIsNeverWritten) {
  Plan plan = plan_of(Algorithm::kRing, 4);
  step_of(plan, 3, 3).sink = {};
  expect_refused(plan, "rank 3 ends its call without having written out[0]");
}

TEST(Verify, RefusesAnOutputChunkThatIsWrittenTwice) {
  ChannelBuilder channel;
  channel.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  channel.step().local(Space::kOutput, 0).store(Space::kOutput, 0);
  expect_refused(one_rank({std::move(channel).build()}), "step 1: writes out[0] a second time in one tile");
}

TEST(Verify, RefusesAnIncompleteValueInOutput) {
  Plan plan = two_ranks();
  step_of(plan, 0, 0).sink = {.space = Space::kOutput};
  expect_refused(plan, "rank 0 channel 0 step 0: stores out[0] with 1 of 2 contributions");
}

TEST(Verify, RefusesAWrongCompletesMark) {
  Plan missing = two_ranks();
  step_of(missing, 0, 1).completes = 0;
  expect_refused(missing, "rank 0 channel 0 step 1: completes chunk 0 but is not marked so");
  Plan early = two_ranks();
  step_of(early, 1, 0).completes = 1;
  expect_refused(early, "rank 1 channel 0 step 0: is marked as completing chunk 0, which has 1 of 2 contributions");
  Plan late = plan_of(Algorithm::kRing, 3);
  step_of(late, 0, 4).completes = 1;
  expect_refused(late, "complete already");
}

TEST(Verify, RefusesReadingMemoryThatWasNotWrittenInThisTile) {
  ChannelBuilder unwritten;
  unwritten.step().local(Space::kScratch, 0).store(Space::kOutput, 0).completes();
  expect_refused(one_rank({std::move(unwritten).build()}), "reads scratch[0], which was not written in this tile");
  ChannelBuilder stale;  // the chunk was written, but in the previous tile
  stale.step().local(Space::kOutput, 0).store(Space::kScratch, 0);
  expect_refused(one_rank({std::move(stale).build()}), "reads out[0], which was not written in this tile");
}

TEST(Verify, RefusesReadingInputThatWasOverwrittenInPlace) {
  ChannelBuilder channel;
  channel.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  channel.step().local(Space::kInput, 0).store(Space::kScratch, 0);
  Plan plan = one_rank({std::move(channel).build()});
  plan.ranks[0].channels[0].steps[1].completes = 1;
  EXPECT_TRUE(verify(plan).ok());
  expect_refused(plan, "reads in[0] after it was overwritten, in place, by out[0]", {.in_place = true});
}

TEST(Verify, RefusesAnOrderOtherThanThePromisedOne) {
  Plan plan = plan_of(Algorithm::kTwoShot, 3);
  step_of(plan, 1, 2).source_position = 0;  // adds r1 before r0
  expect_refused(plan, "rank 1 channel 0 step 2: out[1] was not added in rank order");
  plan.shape.order = Order::kAny;
  EXPECT_TRUE(verify(plan).ok()) << "without a promised order, any order is accepted that is the same on all ranks";
}

TEST(Verify, RefusesDifferentOrdersOnDifferentRanks) {
  Plan plan = plan_of(Algorithm::kOneShot, 3);
  plan.shape.order = Order::kAny;
  EXPECT_TRUE(verify(plan).ok());
  step_of(plan, 2, 1).source_position = 0;  // adds r2+r0+r1 on this rank, but r0+r1+r2 on the others
  expect_refused(plan, "out[0] was added in another order or grouping than on another rank");
}

TEST(Verify, GivesTheAdditionOrder) {
  EXPECT_EQ(*addition_order(plan_of(Algorithm::kTwoShot, 3)), (std::vector<std::string>(3, "((r0+r1)+r2)")));
  EXPECT_EQ(*addition_order(plan_of(Algorithm::kOneShot, 4)), (std::vector<std::string>{"(((r0+r1)+r2)+r3)"}));
  EXPECT_EQ(*addition_order(plan_of(Algorithm::kRing, 3)),
            (std::vector<std::string>{"((r0+r1)+r2)", "((r1+r2)+r0)", "((r2+r0)+r1)"}));
  EXPECT_EQ(*addition_order(plan_of(Algorithm::kRing, 1)), (std::vector<std::string>{"r0"}));
  EXPECT_FALSE(addition_order(Plan{}).ok());
}

// A plan in which the sets of ranks are not contiguous: it adds r0+r2 and r1+r3, and then both sums.
TEST(Verify, FollowsSetsOfRanksThatAreNoRuns) {
  Plan plan;
  plan.shape = {.collective = {.ranks = 4}, .chunks = 1, .slots = 1, .lanes = 1};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ChannelBuilder b;
    if (rank >= 2) {
      b.step().local(Space::kInput, 0).send(b.send_to(rank - 2, 0));
      b.step().receive(b.receive_from(rank - 2, 0)).store(Space::kOutput, 0);
    } else if (rank == 1) {
      b.step().local(Space::kInput, 0).receive(b.receive_from(3, 0)).send(b.send_to(0, 0));
      b.step().receive(b.receive_from(0, 0)).store(Space::kOutput, 0).send(b.send_to(3, 0));
    } else {
      b.step().local(Space::kInput, 0).receive(b.receive_from(2, 0)).store(Space::kScratch, 0);
      auto sum = b.step();
      sum.local(Space::kScratch, 0).receive(b.receive_from(1, 0)).store(Space::kOutput, 0).completes();
      sum.send(b.send_to(1, 0)).send(b.send_to(2, 0));
    }
    plan.ranks.push_back({.channels = {std::move(b).build()}});
  }
  plan.shape.scratch_chunks = 1;
  EXPECT_TRUE(verify_all(plan).ok());
  EXPECT_EQ(*addition_order(plan), (std::vector<std::string>{"((r0+r2)+(r1+r3))"}));
  Step& again = step_of(plan, 0, 1);  // adds r1+r3 and r0, so that r2 is missing
  again.source = {.space = Space::kInput};
  again.source_position = 1;
  expect_refused(plan, "rank 0 channel 0 step 1: is marked as completing chunk 0, which has 3 of 4 contributions");
}

}  // namespace
}  // namespace tutti
