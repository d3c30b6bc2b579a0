// Tests of advertised outputs at the end of a lane that has no queue pairs: counters in headers of the peer.
#include "transports/verbs/advertised_outputs.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

class AdvertisedOutputsTest : public testing::Test {
 protected:
  HandshakeChannel handshake_channel{{}, {}, 1024};
  VerbsLaneOptions options;
  LaneState state{options, handshake_channel};
  LaneMemory memory{options.slots, options.slot_bytes};
  QueuePairs pairs{options, state};
  AdvertisedOutputs outputs{state, memory, pairs};
};

TEST_F(AdvertisedOutputsTest, MoreDescriptorsThanAdvertisedCannotHaveBeenReceived) {
  outputs.note_received(0);
  EXPECT_FALSE(state.corrupt());
  outputs.note_received(1);
  EXPECT_TRUE(state.corrupt()) << "this rank has advertised nothing, so a correct peer cannot have received anything";
}

}  // namespace
}  // namespace tutti
