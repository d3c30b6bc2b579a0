// Breaks plans of collectives that only move data, with mistakes that a person could make, and checks the verifier's
// errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "every_plan.h"
#include "plan/verify/verify.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using Kind = CollectiveKind;

void expect_refused(const Plan& plan, const std::string& cause, const VerifyOptions& options = {}) {
  const Result<VerifyReport> report = verify(plan, options);
  ASSERT_FALSE(report.ok()) << "expected: " << cause;
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidPlan);
  EXPECT_THAT(report.error().message, HasSubstr(cause));
}

Step& step_of(Plan& plan, std::uint32_t rank, std::uint32_t step) { return plan.ranks[rank].channels[0].steps[step]; }

TEST(Refused, ABroadcastFromTheWrongRoot) {
  Plan plan = plan_of({Kind::kBroadcast, Algorithm::kChain}, 4, 1);
  plan.shape.collective.root = 0;
  expect_refused(plan, "rank 1 channel 0 step 0: source in[0] is out of bounds: rank 1 has no such buffer");
  // The same mistake if all ranks have buffers: rank 1's block is gathered to the place of rank 0's block.
  Plan gathered = plan_of({Kind::kAllGather, Algorithm::kDirect}, 3);
  std::swap(step_of(gathered, 2, 1).sink.chunk, step_of(gathered, 2, 2).sink.chunk);
  expect_refused(gathered, "stores out[1] from rank 0 instead of rank 1");
}

TEST(Refused, AScatterThatExchangesTwoBlocks) {
  Plan plan = plan_of({Kind::kScatter, Algorithm::kDirect}, 4);
  std::swap(step_of(plan, 0, 0).source.chunk, step_of(plan, 0, 1).source.chunk);  // the blocks of ranks 3 and 2
  expect_refused(plan, "rank 2 channel 0 step 0: stores chunk 3 to out[0], which is for chunk 2");
}

TEST(Refused, AGatherThatWritesAnotherRanksBlock) {
  Plan plan = plan_of({Kind::kGather, Algorithm::kBinomial}, 4);
  step_of(plan, 0, 2).sink.chunk = 3;
  expect_refused(plan, "rank 0 channel 0 step 2: stores out[3] from rank 2 instead of rank 3");
}

TEST(Refused, AnAllToAllThatIsTransposedWrongly) {
  Plan sends = plan_of({Kind::kAllToAll, Algorithm::kDirect}, 3);
  std::swap(step_of(sends, 0, 1).source.chunk, step_of(sends, 0, 2).source.chunk);
  expect_refused(sends, "rank 1 channel 0 step 3: stores chunk 2 to out[0], which is for chunk 1");
  Plan stores = plan_of({Kind::kAllToAll, Algorithm::kDirect}, 3);
  std::swap(step_of(stores, 0, 3).sink.chunk, step_of(stores, 0, 4).sink.chunk);
  expect_refused(stores, "rank 0 channel 0 step 3: stores out[1] from rank 2 instead of rank 1");
}

TEST(Refused, AnAllToAllThatReceivesWhereItHasStillToSend) {
  Plan late = plan_of({Kind::kAllToAll, Algorithm::kBruck}, 5);
  // the chunk for rank + 4 is not sent before the chunk from rank - 1 overwrites it
  for (RankPlan& rank : late.ranks) {
    Channel& sender = rank.channels[0];
    for (Step& step : sender.steps) {
      if (step.send_count == 1 && step.source == Slice{.space = Space::kScratch, .chunk = 4}) {
        step.source = {.space = Space::kInput,
                       .chunk = (static_cast<std::uint32_t>(&rank - late.ranks.data()) + 4) % 5};
      }
    }
  }
  EXPECT_TRUE(verify(late).ok()) << "out of place, no block is overwritten";
  expect_refused(late, "after it was overwritten, in place, by out[", {.in_place = true});
}

TEST(Refused, AnAllToAllInPlaceThroughWindows) {
  for (const Algorithm algorithm : algorithms_of(Kind::kAllToAll)) {
    Plan plan = plan_of({Kind::kAllToAll, algorithm}, 4);
    plan.shape.windows_in_place = true;
    EXPECT_TRUE(verify(plan, {.windows = true}).ok());
    expect_refused(plan, "race on ", {.in_place = true, .windows = true});
  }
}

TEST(Refused, AnAllGatherThatOverwritesABlockBeforeItWasSent) {
  // Rank 0 sends its block in a separate step after it has stored it. In place, the input is overwritten at that
  // time.
  ChannelBuilder first;
  first.step().local(Space::kInput, 0).store(Space::kOutput, 0);
  first.step().local(Space::kInput, 0).send(first.send_to(1, 0));
  first.step().receive(first.receive_from(1, 0)).store(Space::kOutput, 1);
  ChannelBuilder second;
  second.step().local(Space::kInput, 0).store(Space::kOutput, 1).send(second.send_to(0, 0));
  second.step().receive(second.receive_from(0, 0)).store(Space::kOutput, 0);
  Plan plan;
  plan.shape = {.collective = {.kind = Kind::kAllGather, .ranks = 2}, .algorithm = Algorithm::kDirect};
  plan.ranks = {{.channels = {std::move(first).build()}}, {.channels = {std::move(second).build()}}};
  EXPECT_TRUE(verify(plan).ok());
  expect_refused(plan, "rank 0 channel 0 step 1: reads in[0] after it was overwritten, in place, by out[0]",
                 {.in_place = true});
  // If the block is sent first and stored afterwards, a peer may read through a window while the block is being
  // stored.
  std::swap(step_of(plan, 0, 0), step_of(plan, 0, 1));
  EXPECT_TRUE(verify(plan, {.in_place = true}).ok());
  expect_refused(plan, "race on ", {.in_place = true, .windows = true});
}

TEST(Refused, AddingInABroadcast) {
  ChannelBuilder root;
  const std::uint16_t even = root.send_to(1, 0);
  const std::uint16_t odd = root.send_to(1, 1);
  root.step().local(Space::kInput, 0).store(Space::kOutput, 0).send(even).send(odd);
  ChannelBuilder leaf;
  const std::uint16_t from_even = leaf.receive_from(0, 0);
  const std::uint16_t from_odd = leaf.receive_from(0, 1);
  leaf.step().receive(from_even).receive(from_odd).store(Space::kOutput, 0);
  Plan sum;
  sum.shape = {.collective = {.kind = Kind::kBroadcast, .ranks = 2}, .algorithm = Algorithm::kDirect, .lanes = 2};
  sum.ranks = {{.channels = {std::move(root).build()}}, {.channels = {std::move(leaf).build()}}};
  expect_refused(sum, "rank 1 channel 0 step 0: adds in a broadcast, which only moves");
}

TEST(Refused, ACompletesMarkWhereNothingIsAdded) {
  Plan plan = plan_of({Kind::kScatter, Algorithm::kBinomial}, 2);
  step_of(plan, 1, 0).completes = 1;
  expect_refused(plan, "rank 1 channel 0 step 0: is marked as completing a sum, but nothing is added");
}

TEST(Refused, AReduceScatterWhoseBlocksGoAstray) {
  Plan plan = plan_of({Kind::kReduceScatter, Algorithm::kRing}, 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {  // every block ends one rank too far
    for (std::uint32_t s = 0; s < 3; ++s) step_of(plan, rank, s).source.chunk = (rank + 3 - s) % 3;
  }
  expect_refused(plan, "to out[0], which is for chunk");
}

}  // namespace
}  // namespace tutti
