// Tests the detection of races: memory that two channels or two ranks access without an order between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/verify/verify.h"
#include "plan/windows.h"
#include "plans.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Channel 0 writes out[0], and channel 1 reads it. If `ordered`, an After defines the order.
Plan writer_and_reader(bool ordered) {
  ChannelBuilder writer;
  writer.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  ChannelBuilder reader;
  reader.step().local(Space::kOutput, 0).store(Space::kScratch, 0);
  if (ordered) reader.after(0, 0);
  return one_rank({std::move(writer).build(), std::move(reader).build()});
}

TEST(Races, TwoChannelsNeedAnAfter) {
  const Result<VerifyReport> report = verify(writer_and_reader(false));
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message,
              AllOf(HasSubstr("race on out[0] of rank 0"), HasSubstr("rank 0 channel 0 step 0 (a write)"),
                    HasSubstr("rank 0 channel 1 step 0 (a read)")));
  EXPECT_TRUE(verify_all(writer_and_reader(true)).ok());
}

TEST(Races, ARanksOwnOrderShowsWhatItsWaitsOrder) {
  for (const bool ordered : {true, false}) {
    const Result<VerifyReport> report =
        verify(writer_and_reader(ordered), {.own_order_only = true, .tiles = 1, .calls = 1});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->race_free, ordered);
  }
}

// Channel 0 sends in[0] to the other rank, and channel 1 overwrites it with the sum that comes back. If `twice`, a
// third channel reads the same input without an order, so that only timing keeps it before the store.
Plan input_replaced_by_its_sum(bool twice) {
  ChannelBuilder sender;
  sender.step().local(Space::kInput, 0).send(sender.send_to(1, 0));
  ChannelBuilder receiver;
  receiver.step().receive(receiver.receive_from(1, 0)).store(Space::kOutput, 0);
  ChannelBuilder idle;
  idle.step().local(Space::kInput, 0).store(Space::kScratch, 0);
  ChannelBuilder adder;
  adder.step()
      .receive(adder.receive_from(0, 0))
      .local(Space::kInput, 0)
      .store(Space::kOutput, 0)
      .completes()
      .send(adder.send_to(0, 0));
  Plan plan{.shape = {.collective = {.ranks = 2}, .scratch_chunks = 1}, .ranks = std::vector<RankPlan>(2)};
  plan.ranks[0].channels = {std::move(sender).build(), std::move(receiver).build()};
  if (twice) plan.ranks[0].channels.push_back(std::move(idle).build());
  plan.ranks[1].channels = {std::move(adder).build()};
  return plan;
}

TEST(Races, ARanksOwnOrderCountsOnTheValueForAnInputThatIsReadOnce) {
  for (const bool twice : {false, true}) {
    const Plan plan = input_replaced_by_its_sum(twice);
    const auto report = verify(plan, {.in_place = true, .own_order_only = true, .tiles = 1, .calls = 1});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->race_free, !twice);
    EXPECT_EQ(verify(plan, {.in_place = true}).ok(), !twice);
    const Result<VerifyReport> apart = verify(plan, {.own_order_only = true});
    ASSERT_TRUE(apart.ok()) << apart.error().message;
    EXPECT_TRUE(apart->race_free);
  }
}

TEST(Races, AnAfterOrdersOneTileOnlySoScratchNeedsAnotherOfTheTileBefore) {
  ChannelBuilder writer;
  writer.step().local(Space::kInput, 0).store(Space::kScratch, 0).completes();
  ChannelBuilder reader;
  reader.step().local(Space::kScratch, 0).store(Space::kOutput, 0);
  reader.after(0, 0);
  Plan plan = one_rank({std::move(writer).build(), std::move(reader).build()});
  EXPECT_TRUE(verify(plan, {.tiles = 1}).ok());
  // the second tile of the writer conflicts with the first tile of the reader
  const Result<VerifyReport> report = verify(plan);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, HasSubstr("scratch[0]"));
  After& after = plan.ranks[0].channels[0].after.emplace_back();
  after = {.step = 0, .other_channel = 1, .tiles_before = 1, .other_step = 0};
  EXPECT_TRUE(verify(plan, {.tiles = 5, .calls = 3}).ok());
  after.tiles_before = 0;
  const Result<VerifyReport> stuck = verify(plan);
  ASSERT_FALSE(stuck.ok());
  EXPECT_THAT(stuck.error().message, HasSubstr("deadlock"));
}

TEST(Races, TwoChannelsMayReadTheSameInput) {
  ChannelBuilder first;
  first.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  ChannelBuilder second;
  second.step().local(Space::kInput, 0).store(Space::kScratch, 0).completes();
  const Plan plan = one_rank({std::move(first).build(), std::move(second).build()});
  EXPECT_TRUE(verify(plan).ok());
  EXPECT_FALSE(verify(plan, {.in_place = true}).ok()) << "in place, the first channel overwrites what the second reads";
}

TEST(Races, MessagesOrderTheChannelsOfATree) {
  const Result<VerifyReport> report = verify(plan_of(Algorithm::kDoubleTree, 7), {.in_place = true});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_GT(report->race_checks, 0u)
      << "the up channel reads the memory that the down channel writes, so there must be checks";
}

TEST(Races, ATreeWhoseDownChannelRunsAheadIsRefused) {
  // Rank 0 sends back the received data at once. The leaf's down channel may then store while its up channel still
  // reads.
  Plan plan;
  plan.shape = {.collective = {.ranks = 2}, .chunks = 1, .slots = 2, .lanes = 2, .order = Order::kAny};
  ChannelBuilder sum;
  sum.step()
      .local(Space::kInput, 0)
      .receive(sum.receive_from(1, 0))
      .store(Space::kOutput, 0)
      .completes()
      .send(sum.send_to(1, 1));
  ChannelBuilder up;
  up.step().local(Space::kInput, 0).send(up.send_to(0, 0));
  // reads the input again, after the message that defines the order
  up.step().local(Space::kInput, 0).store(Space::kScratch, 0);
  ChannelBuilder down;
  down.step().receive(down.receive_from(0, 1)).store(Space::kOutput, 0);
  plan.shape.scratch_chunks = 1;
  plan.ranks.push_back({.channels = {std::move(sum).build()}});
  plan.ranks.push_back({.channels = {std::move(up).build(), std::move(down).build()}});
  EXPECT_TRUE(verify(plan).ok());
  const Result<VerifyReport> report = verify(plan, {.in_place = true});
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, HasSubstr("rank 1 channel 0 step 1"));
}

TEST(Races, AOneShotInPlaceMustNotPublish) {
  Plan plan = plan_of(Algorithm::kOneShot, 4);
  EXPECT_TRUE(verify_all(plan).ok());
  plan.shape.windows_in_place = true;
  EXPECT_TRUE(verify(plan, {.in_place = true}).ok());
  EXPECT_TRUE(verify(plan, {.windows = true}).ok());
  const Result<VerifyReport> report = verify(plan, {.in_place = true, .windows = true});
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, AllOf(HasSubstr("race on"), HasSubstr("a read of what was published to it")));
}

// Both ranks copy their input to scratch, send it from there, and add the received data.
Plan exchange_from_scratch() {
  Plan plan;
  plan.shape = {
      .collective = {.ranks = 2}, .chunks = 1, .scratch_chunks = 1, .slots = 2, .lanes = 1, .order = Order::kByRank};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ChannelBuilder b;
    b.step().local(Space::kInput, 0).store(Space::kScratch, 0);
    b.step().local(Space::kScratch, 0).send(b.send_to(1 - rank, 0));
    auto add = b.step();
    if (rank == 0) add.local(Space::kInput, 0);
    add.receive(b.receive_from(1 - rank, 0));
    if (rank == 1) add.local(Space::kInput, 0);
    add.store(Space::kOutput, 0).completes();
    plan.ranks.push_back({.channels = {std::move(b).build()}});
  }
  return plan;
}

// If scratch were published, the second tile would overwrite data of the first tile that the peer may still read.
TEST(Races, ScratchIsNeverPublished) {
  Plan plan = exchange_from_scratch();
  EXPECT_TRUE(verify_all(plan).ok());
  const Step& send = plan.ranks[0].channels[0].steps[1];
  const Step& add = plan.ranks[1].channels[0].steps[2];
  EXPECT_EQ(carrier_of(send, add), Carrier::kSlot);
}

TEST(Races, AStoreIntoAPeersSinkMustComeAfterThePeersLastRead) {
  // Rank 0 computes the sum and sends it. In place, rank 1 reads the memory of its own output chunk until its
  // receive.
  Plan plan;
  plan.shape = {.collective = {.ranks = 2}, .chunks = 1, .scratch_chunks = 1, .slots = 2, .lanes = 1};
  ChannelBuilder sum;
  sum.step()
      .local(Space::kInput, 0)
      .receive(sum.receive_from(1, 0))
      .store(Space::kOutput, 0)
      .completes()
      .send(sum.send_to(1, 0));
  ChannelBuilder late;
  late.step().local(Space::kInput, 0).send(late.send_to(0, 0));
  late.step().local(Space::kInput, 0).store(Space::kScratch, 0);  // the sum may already be in transit
  late.step().receive(late.receive_from(0, 0)).store(Space::kOutput, 0);
  plan.ranks.push_back({.channels = {std::move(sum).build()}});
  plan.ranks.push_back({.channels = {std::move(late).build()}});
  EXPECT_TRUE(verify(plan, {.in_place = true}).ok());
  EXPECT_TRUE(verify(plan, {.windows = true}).ok());
  const Result<VerifyReport> report = verify(plan, {.in_place = true, .windows = true});
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, HasSubstr("a write into its receiver's sink"));
}

// There is an order between the accesses, but it is the wrong one. Because of another message, rank 1 reads after
// rank 0 has already stored the value of a later step.
TEST(Races, WhatAPeerHasStoredIsNotReadBeforeItsStep) {
  Plan plan;
  plan.shape = {.collective = {.ranks = 2}, .chunks = 1, .scratch_chunks = 2, .slots = 2, .lanes = 2};
  ChannelBuilder sum;
  sum.step()
      .local(Space::kInput, 0)
      .receive(sum.receive_from(1, 0))
      .store(Space::kOutput, 0)
      .completes()
      .send(sum.send_to(1, 0));
  sum.step().local(Space::kOutput, 0).send(sum.send_to(1, 1));
  ChannelBuilder late;
  late.step().local(Space::kInput, 0).send(late.send_to(0, 0));
  late.step().receive(late.receive_from(0, 1)).store(Space::kScratch, 0);
  late.step().local(Space::kInput, 0).store(Space::kScratch, 1);  // in place, this memory already contains the sum
  late.step().receive(late.receive_from(0, 0)).store(Space::kOutput, 0);
  plan.ranks.push_back({.channels = {std::move(sum).build()}});
  plan.ranks.push_back({.channels = {std::move(late).build()}});
  const Result<VerifyReport> staged = verify(plan, {.in_place = true});
  EXPECT_TRUE(staged.ok()) << staged.error().message;
  EXPECT_TRUE(verify(plan, {.windows = true}).ok());
  const Result<VerifyReport> report = verify(plan, {.in_place = true, .windows = true});
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message,
              AllOf(HasSubstr("in[0] of rank 1"), HasSubstr("rank 1 channel 0 step 2 (a read)"),
                    HasSubstr("comes after rank 0 channel 0 step 0 (a write into its receiver's sink)")));
}

TEST(Races, WhatWasPublishedIsReadAsItWas) {
  Plan plan;
  plan.shape = {.collective = {.ranks = 2}, .chunks = 1, .scratch_chunks = 2, .slots = 2, .lanes = 3};
  ChannelBuilder sum;
  sum.step()
      .local(Space::kInput, 0)
      .receive(sum.receive_from(1, 1))
      .store(Space::kOutput, 0)
      .completes()
      .send(sum.send_to(1, 0));
  sum.step().receive(sum.receive_from(1, 2)).store(Space::kScratch, 0);
  sum.step().receive(sum.receive_from(1, 0)).store(Space::kScratch, 1);  // published before the steps above
  ChannelBuilder giver;
  giver.step().local(Space::kInput, 0).send(giver.send_to(0, 0));
  giver.step().local(Space::kInput, 0).send(giver.send_to(0, 1));
  // in place, this overwrites the published value
  giver.step().receive(giver.receive_from(0, 0)).store(Space::kOutput, 0);
  giver.step().local(Space::kOutput, 0).send(giver.send_to(0, 2));
  plan.ranks.push_back({.channels = {std::move(sum).build()}});
  plan.ranks.push_back({.channels = {std::move(giver).build()}});
  const Result<VerifyReport> staged = verify(plan, {.in_place = true});
  EXPECT_TRUE(staged.ok()) << staged.error().message;
  EXPECT_TRUE(verify(plan, {.windows = true}).ok());
  const Result<VerifyReport> report = verify(plan, {.in_place = true, .windows = true});
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, AllOf(HasSubstr("in[0] of rank 1"),
                                            HasSubstr("after it was published and before rank 0 channel 0 step 2")));
}

TEST(Races, ReadersOnManyRanksAreAllRemembered) {
  // Rank 0 publishes in[0] to three peers. In place, it overwrites the value when the first of them has answered.
  Plan plan;
  plan.shape = {.collective = {.ranks = 4}, .chunks = 1, .slots = 2, .lanes = 1, .order = Order::kAny};
  ChannelBuilder root;
  auto publish = root.step();
  publish.local(Space::kInput, 0);
  for (std::uint32_t peer = 1; peer < 4; ++peer) publish.send(root.send_to(peer, 0));
  root.step().receive(root.receive_from(1, 0)).store(Space::kOutput, 0);
  plan.ranks.push_back({.channels = {std::move(root).build()}});
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    ChannelBuilder b;
    for (std::uint32_t peer = 1; peer < 4; ++peer) {
      if (peer != rank) b.step().local(Space::kInput, 0).send(b.send_to(peer, 0));
    }
    auto add = b.step();
    for (std::uint32_t peer = 0; peer < 4; ++peer) {
      if (peer == rank) add.local(Space::kInput, 0);
      if (peer != rank) add.receive(b.receive_from(peer, 0));
    }
    add.store(Space::kOutput, 0).completes();
    if (rank == 1) add.send(b.send_to(0, 0));
    plan.ranks.push_back({.channels = {std::move(b).build()}});
  }
  EXPECT_TRUE(verify(plan, {.in_place = true}).ok());
  EXPECT_TRUE(verify(plan, {.windows = true}).ok());
  EXPECT_FALSE(verify(plan, {.in_place = true, .windows = true}).ok());
}

}  // namespace
}  // namespace tutti
