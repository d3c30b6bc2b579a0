// Tests which messages of a plan may be published or pushed through windows of registered memory, and which need a
// slot.
#include "plan/windows.h"

#include <gtest/gtest.h>

#include "plans.h"

namespace tutti {
namespace {

std::vector<WindowSend> sends_of(Algorithm algorithm, std::uint32_t ranks, std::uint32_t rank) {
  const Generator generator = *find_generator({.ranks = ranks}, algorithm);
  return window_sends(generator, rank, generator.build(generator.shape, rank));
}

TEST(Windows, ATwoShotPublishesInputsAndPushesResults) {
  const std::vector<WindowSend> sends = sends_of(Algorithm::kTwoShot, 4, 1);
  ASSERT_EQ(sends.size(), 6u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sends[i].carrier, Carrier::kPublished);
    EXPECT_EQ(sends[i].unpublished, Carrier::kSlot) << "the owner adds: there is no sink to write into";
    EXPECT_EQ(sends[i].peer, (2 + i) % 4);
    EXPECT_EQ(sends[i].peer_step, 3u);
  }
  for (std::size_t i = 3; i < 6; ++i) {
    EXPECT_EQ(sends[i].step, 3u);
    EXPECT_EQ(sends[i].send_index, i - 3);
    EXPECT_EQ(sends[i].carrier, Carrier::kDelivered);
    EXPECT_EQ(sends[i].peer_sink, (Slice{.space = Space::kOutput, .chunk = 1}));
  }
}

TEST(Windows, ARingPublishesItsFirstStepAndPushesTheWayBack) {
  const std::vector<WindowSend> sends = sends_of(Algorithm::kRing, 4, 2);
  ASSERT_EQ(sends.size(), 6u);
  const Carrier expected[] = {Carrier::kPublished, Carrier::kSlot,      Carrier::kSlot,
                              Carrier::kDelivered, Carrier::kDelivered, Carrier::kDelivered};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(sends[i].carrier, expected[i]) << "step " << i;
    EXPECT_EQ(sends[i].peer_step, i + 1);
  }
  EXPECT_EQ(sends[3].peer_sink, (Slice{.space = Space::kOutput, .chunk = 3}));
}

TEST(Windows, ATreePublishesFromLeavesAndPushesDown) {
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    for (const WindowSend& send : sends_of(Algorithm::kDoubleTree, 6, rank)) {
      if (send.carrier == Carrier::kDelivered) {
        EXPECT_EQ(send.lane % 2, 1);
        EXPECT_EQ(send.peer_channel, send.lane);
        EXPECT_EQ(send.peer_sink, (Slice{.space = Space::kOutput, .chunk = send.lane / 2u}));
      } else {
        EXPECT_EQ(send.lane % 2, 0);
      }
    }
  }
}

TEST(Windows, AValueThatAStepComputesIsNeverPublished) {
  Step lone_send;
  lone_send.source.space = Space::kInput;
  lone_send.send_count = 1;
  Step adds = lone_send;
  adds.receive_count = 1;
  Step stores;
  stores.sink.space = Space::kOutput;
  stores.receive_count = 1;
  Step stores_sum = stores;
  stores_sum.source = {.space = Space::kInput};
  EXPECT_EQ(carrier_of(lone_send, stores), Carrier::kPublished);
  EXPECT_EQ(carrier_of(adds, stores), Carrier::kDelivered);
  EXPECT_EQ(carrier_of(adds, stores_sum), Carrier::kSlot);
  EXPECT_EQ(carrier_without_publish(stores), Carrier::kDelivered);
  Step from_scratch = lone_send;
  from_scratch.source.space = Space::kScratch;
  EXPECT_FALSE(can_publish(from_scratch)) << "no rank maps the scratch of others";
  Step to_scratch = stores;
  to_scratch.sink.space = Space::kScratch;
  EXPECT_FALSE(can_push(to_scratch));
  Step divides = lone_send;
  divides.completes = 1;
  EXPECT_EQ(carrier_of(divides, stores_sum), Carrier::kSlot);
}

}  // namespace
}  // namespace tutti
