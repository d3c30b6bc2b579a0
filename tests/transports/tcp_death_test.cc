// The TCP transport when the process of a peer has ended without a goodbye.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "tcp_support.h"

namespace tutti::tcp_test {
namespace {

constexpr std::uint64_t kDataBytes = 60000;

// A peer by hand that has sent a whole message of call 1 to rank 1.
RawPeer sent_one(World& world) {
  RawPeer peer(world.addresses[1]);
  peer.write(peer.preamble(world.options(1), 0));
  peer.write(message(kDataBytes, call(1)));
  const std::vector<std::byte> data(kDataBytes, std::byte{5});
  peer.write(data.data(), data.size());
  return peer;
}

TEST(TcpDeath, WithoutAGoodbyeIsALossAfterTheDataWasRead) {
  ClearWorld world;
  auto receive = world.receive(0, 1);
  RawPeer peer = sent_one(world);
  peer.close();
  world.ranks[1]->pump();
  EXPECT_EQ(world.ranks[1]->peer_status(0).life, PeerLife::kLive) << "its data has not been read";
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  EXPECT_EQ(receive->front().bytes, kDataBytes);
  receive->release();
  EXPECT_EQ(life_of(world, 1, 0, PeerLife::kLost), PeerLife::kLost);
  EXPECT_NE(world.ranks[1]->troubles().find("rank 0"), std::string::npos);
}

TEST(TcpDeath, WithoutAGoodbyeIsALossEvenIfNobodyReadsTheData) {
  ClearWorld world;
  auto receive = world.receive(0, 1);
  RawPeer peer = sent_one(world);
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);  // and is never released
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  peer.reset();
  EXPECT_EQ(life_of(world, 1, 0, PeerLife::kLost), PeerLife::kLost);
  const auto limit = test::scaled(std::chrono::seconds(5));
  EXPECT_LT(clock.now_ns() - start_ns, std::chrono::nanoseconds(limit).count()) << "about 0.5 s on a quiet machine";
}

TEST(TcpDeath, InTheMiddleOfAMessageIsALossAndNoMessage) {
  ClearWorld world;
  auto receive = world.receive(0, 1);
  RawPeer peer(world.addresses[1]);
  peer.write(peer.preamble(world.options(1), 0));
  peer.write(message(kDataBytes, call(1)));
  peer.write(call(1));
  peer.close();
  EXPECT_EQ(await(*receive, call(1), {}, 100), Arrival::kNothing);
  EXPECT_EQ(life_of(world, 1, 0, PeerLife::kLost), PeerLife::kLost);
}

// Rank 0 of two. The process of rank 1 is an endpoint, which ends when it is reset.
struct WorldWithADoomedPeer : World {
  std::shared_ptr<TcpEndpoint> doomed = endpoint({.address = "127.0.0.1", .encrypt = encrypted()});
  WorldWithADoomedPeer() {
    addresses[1] = doomed->address();
    ranks[0] = nullptr;
    ranks[0] = TcpTransport::create(options(0), endpoints[0], addresses).value();
  }
  void end_peer() {
    doomed->service();
    doomed = nullptr;  // it closes with everything that it had admitted
    EXPECT_EQ(life_of(*this, 0, 1, PeerLife::kLost), PeerLife::kLost);
  }
};

TEST(TcpDeath, IsSeenOnAConnectionThatOnlySends) {
  WorldWithADoomedPeer world;
  auto send = world.send(0, 1);
  world.end_peer();
}

TEST(TcpDeath, WhatIsSentAfterItIsNeverHandedOver) {
  WorldWithADoomedPeer world;
  auto send = world.send(0, 1);
  const std::vector<std::byte> data(kDataBytes);
  ASSERT_TRUE(send->ready());
  send->send_from(data.data(), data.size(), call(1));
  EXPECT_TRUE(eventually([&] {
    world.doomed->service();
    world.ranks[0]->flush();
    return send->handed_over();
  })) << "the kernel takes it";
  world.end_peer();
  EXPECT_TRUE(send->handed_over()) << "the peer may have read it before its end";
  EXPECT_FALSE(send->ready()) << "nothing more can be sent";
  send->send_from(data.data(), data.size(), call(1));
  EXPECT_FALSE(send->handed_over());
  EXPECT_TRUE(world.ranks[0]->flush()) << "nothing waits in this process";
}

TEST(TcpDeath, WhatTheKernelHadNotTakenBeforeItIsNeverHandedOver) {
  WorldWithADoomedPeer world;
  auto send = world.send(0, 1);
  const std::vector<std::byte> data(kSlotBytes);
  while (send->ready()) send->send_from(data.data(), data.size(), call(1));
  EXPECT_FALSE(send->handed_over()) << "the peer's kernel has no room for it";
  world.end_peer();
  EXPECT_FALSE(send->ready());
  EXPECT_FALSE(send->handed_over());
}

TEST(TcpDeath, IsSeenByAConnectionThatIsRefused) {
  World world;
  auto gone = endpoint();
  world.addresses[1] = gone->address();
  world.ranks[0] = nullptr;
  world.ranks[0] = TcpTransport::create(world.options(0), endpoint(), world.addresses).value();
  gone = nullptr;
  auto send = world.ranks[0]->open_send(1, 0);
  if (!send) {
    EXPECT_EQ(send.error().code, ErrorCode::kPeerLost);
    return;
  }
  EXPECT_EQ(life_of(world, 0, 1, PeerLife::kLost), PeerLife::kLost);
  EXPECT_NE(world.ranks[0]->troubles().find("refused"), std::string::npos) << world.ranks[0]->troubles();
}

// The peer would have to open the connection, and never did.
TEST(TcpDeath, IsSeenByAReceiverWithoutAConnection) {
  WorldWithADoomedPeer world;
  auto receive = world.receive(1, 0);
  world.end_peer();
  EXPECT_TRUE(world.ranks[0]->peer_status(1).ended) << "it may have left in peace";
}

class HandClock final : public Clock {
 public:
  std::int64_t now_ns() override { return now_ns_; }
  void advance(std::int64_t ns) { now_ns_ += ns; }

 private:
  std::int64_t now_ns_ = 1'000'000'000;
};

// The connection that a rank makes while it waits for a message. No TCP connection can be made to a broadcast address:
// the system refuses it as it does if it has no route to the peer.
TEST(TcpDeath, IsNotConcludedFromAMissingRoute) {
  HandClock clock;  // outlives the ranks
  World world;
  PeerAddress nowhere = PeerAddress::parse(world.addresses[1], 1).value();
  nowhere.socket = parse_address("127.255.255.255:" + std::to_string(nowhere.socket.port())).value();
  world.addresses[1] = nowhere.text();
  int error = 0;
  try_to_connect(nowhere.socket, error);
  ASSERT_EQ(error, ENETUNREACH);
  TcpTransportOptions options = world.options(0);
  options.clock = &clock;
  world.ranks[0] = nullptr;
  world.ranks[0] = TcpTransport::create(options, world.endpoints[0], world.addresses).value();
  auto receive = world.receive(1, 0);
  for (int look = 0; look < 200; ++look) {
    clock.advance(50'000'000);
    world.ranks[0]->pump();
    const PeerStatus status = world.ranks[0]->peer_status(1);
    ASSERT_EQ(status.life, PeerLife::kLive) << world.ranks[0]->peer_loss(1);
    ASSERT_FALSE(status.ended);
  }
  EXPECT_NE(world.ranks[0]->troubles().find("is there a route"), std::string::npos) << world.ranks[0]->troubles();
}

}  // namespace
}  // namespace tutti::tcp_test
