// Tests of the receiving direction of a verbs lane without a device: the test writes into the slots in place of the
// peer.
#include "transports/verbs/lane_receiver.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tutti {
namespace {

class LaneReceiverTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(memory.map()); }
  void write(std::uint64_t number, const LaneHeader& header) {
    std::memcpy(memory.receive_half() + memory.slot_offset(number), &header, sizeof(header));
  }
  static LaneHeader header_of(std::uint32_t number, std::uint64_t bytes = 100) {
    return {.tag = {.sequence = 1, .count = 10}, .bytes = bytes, .number = number};
  }

  HandshakeChannel handshake_channel{{}, {}, 1024};
  VerbsLaneOptions options;
  LaneState state{options, handshake_channel};
  LaneMemory memory{options.slots, options.slot_bytes};
  QueuePairs pairs{options, state};
  LaneReceiver receiver{options, state, memory, pairs};
};

TEST_F(LaneReceiverTest, MessagesAreTakenInOrderWhenAllTheirPartsHaveArrived) {
  write(0, header_of(0));
  write(1, header_of(1));
  EXPECT_TRUE(receiver.take_part(1, 1)) << "message 1 is complete, but message 0 comes first";
  EXPECT_EQ(receiver.front(), nullptr);
  EXPECT_FALSE(receiver.take_part(0, 2));
  EXPECT_FALSE(receiver.has_message());
  EXPECT_TRUE(receiver.take_part(0, 2));
  for (std::uint32_t number = 0; number < 2; ++number) {
    ASSERT_NE(receiver.front(), nullptr) << number;
    EXPECT_EQ(receiver.front()->number, number);
    EXPECT_EQ(receiver.payload(), memory.receive_slot(number) + sizeof(LaneHeader));
    receiver.release();
  }
  EXPECT_EQ(receiver.front(), nullptr);
  EXPECT_EQ(receiver.released(), 2u);
  EXPECT_FALSE(state.corrupt());
}

TEST_F(LaneReceiverTest, APartInASlotThatIsNotFreeIsRefused) {
  write(0, header_of(0));
  EXPECT_TRUE(receiver.take_part(0, 1));
  EXPECT_FALSE(receiver.take_part(0, 1));
  EXPECT_TRUE(state.corrupt());
}

TEST_F(LaneReceiverTest, APartBeyondTheLastSlotIsRefused) {
  EXPECT_FALSE(receiver.take_part(options.slots, 1));
  EXPECT_TRUE(state.corrupt());
}

TEST_F(LaneReceiverTest, MalformedHeadersAreRefused) {
  LaneHeader no_call = header_of(0);
  no_call.tag.sequence = 0;
  for (const LaneHeader& header : {header_of(1), header_of(0, options.slot_bytes + 1), no_call}) {
    LaneState own_state{options, handshake_channel};
    LaneReceiver own{options, own_state, memory, pairs};
    write(0, header);
    ASSERT_TRUE(own.take_part(0, 1));
    EXPECT_EQ(own.front(), nullptr);
    EXPECT_TRUE(own_state.corrupt());
  }
}

}  // namespace
}  // namespace tutti
