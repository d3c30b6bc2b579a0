// Tests of peers that violate the protocol of the verbs transport. The test writes messages into the slots of rank 1
// in place of rank 0. See verbs_support.h.
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/rdma/verbs_support.h"
#include "transports/verbs/lane.h"
#include "transports/verbs/offer.h"

namespace tutti {
namespace {

class VerbsPeer : public Verbs {
 protected:
  void connect() {
    open();
    std::array<std::vector<VerbsPort>, 2> ports;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      VerbsSettings settings;
      settings.devices = devices_of(rank);
      ports[rank] = find_verbs_ports(settings).value().usable;
    }
    std::vector<LaneRail> lane_rails;
    for (const auto& [ours, theirs] : match_rails(ports[0], ports[1])) {
      const VerbsSettings settings;
      auto device = VerbsDevice::open(ports[0][ours].device, settings.cache_bytes).value();
      rails.push_back(VerbsRail::create(std::move(device), ports[0][ours], settings).value());
      lane_rails.push_back({.rail = rails.back().get(), .remote = ports[1][theirs]});
    }
    const VerbsLaneOptions options{.rank = 0, .peer = 1, .slots = kSlots, .slot_bytes = kSlotBytes};
    lane = VerbsLane::open(options, lane_rails, *handshake_channels[0]).value();
    receiver = receive(1);
    ASSERT_TRUE(eventually([&] { return lane->ready(); }));
  }
  // Writes a message without payload into the slot that `header.number` belongs to.
  void write(const LaneHeader& header) {
    std::byte* const start = lane->sender().slot() - sizeof(header);
    std::memcpy(start, &header, sizeof(header));
    const GatherElement element{.data = start, .bytes = sizeof(header), .key = lane->pairs().memory_key(0)};
    const std::uint64_t offset = LaneMemory(kSlots, kSlotBytes).slot_offset(header.number);
    const RdmaWrite one{.elements = std::span(&element, 1),
                        .aim = lane->pairs().remote_memory(0, offset),
                        .immediate = header.number % kSlots};
    lane->pairs().post(0, std::span(&one, 1));
  }

  std::vector<std::unique_ptr<VerbsRail>> rails;
  std::shared_ptr<VerbsLane> lane;
  std::unique_ptr<ReceiveConnection> receiver;
};

TEST_F(VerbsPeer, ThatHasReceivedMoreDescriptorsThanExistIsRefused) {
  connect();
  write({.tag = call(1), .number = 0, .seen = 0});
  ASSERT_EQ(await(*receiver, call(1)), Arrival::kMessage);
  receiver->release();
  write({.tag = call(1), .number = 1, .seen = 1});
  EXPECT_EQ(await(*receiver, call(1)), Arrival::kCorrupt) << "rank 1 has advertised nothing";
}

TEST_F(VerbsPeer, ThatSkipsAMessageIsRefused) {
  connect();
  LaneHeader header{.tag = call(1), .number = kSlots};  // belongs to the slot of message 0
  write(header);
  EXPECT_EQ(await(*receiver, call(1)), Arrival::kCorrupt);
}

}  // namespace
}  // namespace tutti
