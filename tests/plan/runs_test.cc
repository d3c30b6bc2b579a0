// Tests the rules for runs of chunks (Step::run): the verifier refuses plans that break them.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "plan/collective.h"
#include "plan/formats/json.h"
#include "plan/formats/text.h"
#include "plan/limits.h"
#include "plan/plan.h"
#include "plan/verify/verify.h"
#include "plans.h"

namespace tutti {
namespace {

// A correct all_gather of 4 ranks by way of rank 0. It receives the other blocks, each in a message of its own, and
// sends all blocks to each rank in one message. The run begins with block 2, so after block 3 it goes on with block 0.
Plan star() {
  Plan plan;
  plan.shape.collective = {.kind = CollectiveKind::kAllGather, .ranks = 4};
  plan.shape.longest_run = 4;
  ChannelBuilder hub;
  hub.step().local(Space::kInput, 0).store(Space::kOutput, 0);
  for (std::uint32_t peer = 1; peer < 4; ++peer) {
    hub.step().receive(hub.receive_from(peer, 0)).store(Space::kOutput, peer);
  }
  const std::uint16_t to[] = {hub.send_to(1, 0), hub.send_to(2, 0), hub.send_to(3, 0)};
  hub.step().run(4).local(Space::kOutput, 2).send(to[0]).send(to[1]).send(to[2]);
  plan.ranks.push_back({.channels = {std::move(hub).build()}});
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    ChannelBuilder spoke;
    spoke.step().local(Space::kInput, 0).send(spoke.send_to(0, 0));
    spoke.step().run(4).receive(spoke.receive_from(0, 0)).store(Space::kOutput, 2);
    plan.ranks.push_back({.channels = {std::move(spoke).build()}});
  }
  return plan;
}

std::string fault_of(const Plan& plan) {
  const Result<VerifyReport> report = verify_all(plan);
  return report.ok() ? "" : report.error().message;
}

TEST(Run, OfAllBlocksMayBeginInTheMiddle) { EXPECT_EQ(fault_of(star()), ""); }

TEST(Run, GoesOnWithChunk0) {
  EXPECT_EQ(chunk_of_run({.space = Space::kOutput, .chunk = 2}, 1, 4).chunk, 3u);
  EXPECT_EQ(chunk_of_run({.space = Space::kOutput, .chunk = 2}, 2, 4).chunk, 0u);
  Plan plan = star();
  step_of(plan, 1, 1).sink.chunk = 1;
  EXPECT_NE(fault_of(plan).find("rank 1 channel 0 step 1: stores out[1] from rank 2 instead of rank 1"),
            std::string::npos)
      << fault_of(plan);
}

TEST(Run, MustHaveTheSameLengthAtBothEnds) {
  Plan plan = star();
  step_of(plan, 3, 1).run = 3;
  EXPECT_NE(fault_of(plan).find("rank 3 channel 0 step 1 expects a message of 3 chunks, but rank 0 channel 0 step 4 "
                                "sends it with 4"),
            std::string::npos)
      << fault_of(plan);
}

TEST(Run, IsAtMostTheLongestOfTheShape) {
  Plan plan = star();
  plan.shape.longest_run = 3;
  EXPECT_NE(fault_of(plan).find("has a run of 4 chunks; the plan's runs have 1 to 3"), std::string::npos);
  plan = star();
  step_of(plan, 0, 0).run = 0;
  EXPECT_NE(fault_of(plan).find("has a run of 0 chunks"), std::string::npos);
  plan = star();
  plan.shape.longest_run = 0;
  EXPECT_NE(fault_of(plan).find("the longest run has 0 chunks"), std::string::npos);
}

TEST(Run, IsAtMostTheChunksOfItsBuffer) {
  Plan plan = star();
  plan.shape.longest_run = 5;
  for (const std::uint32_t rank : {1u, 2u, 3u}) step_of(plan, rank, 1).run = 5;
  step_of(plan, 0, 4).run = 5;
  EXPECT_NE(fault_of(plan).find("source is a run of 5 chunks, but there are 4"), std::string::npos) << fault_of(plan);
}

// A copy within scratch memory: the first equation stores to chunk 1, which the second one reads.
TEST(Run, MustNotStoreToWhatItReads) {
  Plan plan;
  plan.shape.chunks = 2;
  plan.shape.scratch_chunks = 3;
  plan.shape.longest_run = 2;
  ChannelBuilder channel;
  channel.step().run(2).local(Space::kInput, 0).store(Space::kScratch, 0);
  channel.step().run(2).local(Space::kScratch, 0).store(Space::kScratch, 1);
  channel.step().run(2).local(Space::kScratch, 1).store(Space::kOutput, 0).completes();
  plan.ranks.push_back({.channels = {std::move(channel).build()}});
  EXPECT_NE(
      fault_of(plan).find("step 1: stores to scratch[1], which the run of the same step also reads as scratch[1]"),
      std::string::npos)
      << fault_of(plan);
}

// In an in-place call, out[0] has the memory of in[0], and out[1] that of in[1].
TEST(Run, MustNotStoreToAnInputThatItReads) {
  Plan plan;
  plan.shape.chunks = 2;
  plan.shape.longest_run = 2;
  ChannelBuilder channel;
  channel.step().run(2).local(Space::kInput, 0).store(Space::kOutput, 1).completes();
  plan.ranks.push_back({.channels = {std::move(channel).build()}});
  EXPECT_NE(fault_of(plan).find("stores to out[0], which the run of the same step also reads as in[0]"),
            std::string::npos)
      << fault_of(plan);
}

// With two chunks per block, the chunks of a tile can differ in length. A message does not say how long its values are,
// so the executor must find their lengths by a slice of the input or output.
TEST(Run, OfUnknownLengthsNeedsBlocksOfOneChunk) {
  Plan plan;
  plan.shape.collective = {.kind = CollectiveKind::kBroadcast, .ranks = 2};
  plan.shape.chunks = 2;
  plan.shape.scratch_chunks = 2;
  plan.shape.longest_run = 2;
  ChannelBuilder root;
  root.step().run(2).local(Space::kInput, 0).store(Space::kOutput, 0).send(root.send_to(1, 0));
  ChannelBuilder other;
  other.step().run(2).receive(other.receive_from(0, 0)).store(Space::kScratch, 0);
  other.step().run(2).local(Space::kScratch, 0).store(Space::kOutput, 0);
  plan.ranks.push_back({.channels = {std::move(root).build()}});
  plan.ranks.push_back({.channels = {std::move(other).build()}});
  EXPECT_NE(fault_of(plan).find("rank 1 channel 0 step 0: receives a run without a local operand"), std::string::npos)
      << fault_of(plan);
}

// One rank with two channels. The first one stores a run of two chunks to scratch memory, and the second one reads the
// second chunk of them.
Plan two_channels(bool waits_for_value, bool waits_for_read) {
  Plan plan;
  plan.shape.chunks = 2;
  plan.shape.scratch_chunks = 2;
  plan.shape.longest_run = 2;
  ChannelBuilder first, second;
  first.step().run(2).local(Space::kInput, 0).store(Space::kScratch, 0).completes();
  if (waits_for_read) first.after(1, 0, 1);
  first.step().local(Space::kScratch, 0).store(Space::kOutput, 0);
  second.step().local(Space::kScratch, 1).store(Space::kOutput, 1);
  if (waits_for_value) second.after(0, 0);
  plan.ranks.push_back({.channels = {std::move(first).build(), std::move(second).build()}});
  return plan;
}

TEST(Run, RacesOnAnyOfItsChunks) {
  EXPECT_EQ(fault_of(two_channels(true, true)), "");
  EXPECT_NE(fault_of(two_channels(true, false)).find("race on scratch[1]"), std::string::npos)
      << fault_of(two_channels(true, false));
  EXPECT_NE(fault_of(two_channels(false, true)), "");
  const VerifyOptions own{.own_order_only = true};
  EXPECT_TRUE(verify(two_channels(true, true), own)->race_free);
}

TEST(Run, CountsAsItsChunksInTheLimits) {
  Plan plan = star();
  EXPECT_TRUE(check_limits(plan).ok());
  step_of(plan, 0, 0).run = 2'100'000;
  const Status status = check_limits(plan);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("steps"), std::string::npos) << status.error().message;
  plan = star();
  step_of(plan, 0, 4).run = 1'500'000;  // three sends
  const Status messages = check_limits(plan);
  ASSERT_FALSE(messages.ok());
  EXPECT_NE(messages.error().message.find("messages of a tile"), std::string::npos) << messages.error().message;
}

TEST(Run, IsWrittenToFilesAndRead) {
  const Plan plan = star();
  const std::string text = to_json({.plan = plan, .name = "star", .comment = ""});
  EXPECT_NE(text.find(R"("run": 4)"), std::string::npos);
  const Result<PlanFile> read = parse_plan(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->plan.shape.longest_run, 4u);
  EXPECT_EQ(read->plan.ranks, plan.ranks);
  const Result<PlanFile> empty = parse_plan(R"({"tutti_plan": 1, "collective": "barrier",
                                                "ranks": [{"channels": [{"steps": [{"run": 0}]}]}]})");
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.error().message.find("ranks[0].channels[0].steps[0].run"), std::string::npos)
      << empty.error().message;
}

TEST(Run, IsShownAsARange) {
  const Plan plan = star();
  EXPECT_EQ(to_text(plan.ranks[2].channels[0], plan.ranks[2].channels[0].steps[1]), "out[2 + 4] = recv(0)");
  EXPECT_NE(to_text(plan.shape).find("up to 4 chunks in a message"), std::string::npos);
}

}  // namespace
}  // namespace tutti
