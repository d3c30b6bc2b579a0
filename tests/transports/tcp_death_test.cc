// Tests of TcpTransport when a peer's process has ended without a close frame.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "tcp_support.h"

namespace tutti::tcp_test {
namespace {

constexpr std::uint64_t kDataBytes = 60000;

// Returns a peer, driven by the test, that has sent one complete message of call 1 to rank 1.
RawPeer sent_one(TestJob& job) {
  RawPeer peer(job.addresses[1]);
  peer.write(peer.preamble(job.options(1), 0));
  peer.write(message(kDataBytes, call(1)));
  const std::vector<std::byte> data(kDataBytes, std::byte{5});
  peer.write(data.data(), data.size());
  return peer;
}

TEST(TcpDeath, WithoutAGoodbyeIsALossAfterTheDataWasRead) {
  PlaintextJob job;
  auto receive = job.receive(0, 1);
  RawPeer peer = sent_one(job);
  peer.close();
  job.ranks[1]->pump();
  EXPECT_EQ(job.ranks[1]->peer_status(0).life, PeerLife::kLive)
      << "the peer counts as live until its data has been read";
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  EXPECT_EQ(receive->front().bytes, kDataBytes);
  receive->release();
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kLost), PeerLife::kLost);
  EXPECT_NE(job.ranks[1]->troubles().find("rank 0"), std::string::npos);
}

TEST(TcpDeath, WithoutAGoodbyeIsALossEvenIfNobodyReadsTheData) {
  PlaintextJob job;
  auto receive = job.receive(0, 1);
  RawPeer peer = sent_one(job);
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);  // and never release the message
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  peer.reset();
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kLost), PeerLife::kLost);
  const auto limit = test::patience() / 2;
  EXPECT_LT(clock.now_ns() - start_ns, std::chrono::nanoseconds(limit).count())
      << "takes about 0.5 s on an idle machine";
}

TEST(TcpDeath, InTheMiddleOfAMessageIsALossAndNoMessage) {
  PlaintextJob job;
  auto receive = job.receive(0, 1);
  RawPeer peer(job.addresses[1]);
  peer.write(peer.preamble(job.options(1), 0));
  peer.write(message(kDataBytes, call(1)));
  peer.write(call(1));
  peer.close();
  EXPECT_EQ(await(*receive, call(1), {}, 100), Arrival::kNothing);
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kLost), PeerLife::kLost);
}

// Rank 0 of two. The process of rank 1 is represented by an endpoint; resetting the endpoint ends that process.
struct JobWithDyingPeer : TestJob {
  std::shared_ptr<TcpEndpoint> doomed = endpoint({.address = "127.0.0.1", .encrypt = encrypted()});
  explicit JobWithDyingPeer(Clock* clock = nullptr) {
    addresses[1] = doomed->address();
    TcpTransportOptions own = options(0);
    own.clock = clock;
    ranks[0] = nullptr;
    ranks[0] = TcpTransport::create(own, endpoints[0], addresses).value();
  }
  void end_peer() {
    doomed->service();
    doomed = nullptr;  // this closes all connections that it had accepted
    EXPECT_EQ(life_of(*this, 0, 1, PeerLife::kLost), PeerLife::kLost);
  }
};

TEST(TcpDeath, IsSeenOnAConnectionThatOnlySends) {
  JobWithDyingPeer job;
  auto send = job.send(0, 1);
  job.end_peer();
}

TEST(TcpDeath, WhatIsSentAfterItIsNeverHandedOver) {
  JobWithDyingPeer job;
  auto send = job.send(0, 1);
  const std::vector<std::byte> data(kDataBytes);
  ASSERT_TRUE(send->ready());
  send->send_from(data.data(), data.size(), call(1));
  EXPECT_TRUE(eventually([&] {
    job.doomed->service();
    job.ranks[0]->flush();
    return send->handed_over();
  })) << "the kernel must accept the message";
  job.end_peer();
  EXPECT_TRUE(send->handed_over()) << "the peer may have read the message before it ended";
  EXPECT_FALSE(send->ready()) << "no further message can be sent";
  send->send_from(data.data(), data.size(), call(1));
  EXPECT_FALSE(send->handed_over());
  EXPECT_TRUE(job.ranks[0]->flush()) << "no data may be left in this process";
}

TEST(TcpDeath, WhatTheKernelHadNotTakenBeforeItIsNeverHandedOver) {
  JobWithDyingPeer job;
  auto send = job.send(0, 1);
  const std::vector<std::byte> data(kSlotBytes);
  while (send->ready()) send->send_from(data.data(), data.size(), call(1));
  EXPECT_FALSE(send->handed_over()) << "the peer's kernel has no space for the message";
  job.end_peer();
  EXPECT_FALSE(send->ready());
  EXPECT_FALSE(send->handed_over());
}

TEST(TcpDeath, IsSeenByAConnectionThatIsRefused) {
  TestJob job;
  auto gone = endpoint();
  job.addresses[1] = gone->address();
  job.ranks[0] = nullptr;
  job.ranks[0] = TcpTransport::create(job.options(0), endpoint(), job.addresses).value();
  gone = nullptr;
  auto send = job.ranks[0]->open_send(1, 0);
  if (!send) {
    EXPECT_EQ(send.error().code, ErrorCode::kPeerLost);
    return;
  }
  EXPECT_EQ(life_of(job, 0, 1, PeerLife::kLost), PeerLife::kLost);
  EXPECT_NE(job.ranks[0]->troubles().find("refused"), std::string::npos) << job.ranks[0]->troubles();
}

// The peer should have opened the connection, but never did.
TEST(TcpDeath, IsSeenByAReceiverWithoutAConnection) {
  JobWithDyingPeer job;
  auto receive = job.receive(1, 0);
  job.end_peer();
  EXPECT_TRUE(job.ranks[0]->peer_status(1).ended) << "the process has ended, perhaps normally";
}

// The connection of this rank ended without an answer. The peer then has 0.5 s to report on another connection that it
// has left. If this process is stopped meanwhile, it cannot read that report, so the time does not count.
TEST(TcpDeath, IsNotConcludedFromTimeInWhichThisProcessWasStopped) {
  constexpr std::int64_t kStoppedNs = 10'000'000'000;
  HandClock clock;  // must outlive the ranks
  JobWithDyingPeer job(&clock);
  auto send = job.send(0, 1);
  job.doomed->service();
  job.doomed = nullptr;
  ASSERT_TRUE(eventually([&] { return job.ranks[0]->pump(), job.ranks[0]->peer_status(1).ended; }));
  clock.advance(kStoppedNs);
  const PeerStatus status = job.ranks[0]->peer_status(1);
  EXPECT_EQ(status.life, PeerLife::kLive);
  EXPECT_TRUE(status.ended);
  EXPECT_FALSE(status.cut);
  EXPECT_TRUE(eventually([&] {
    clock.advance(100'000'000);
    return job.ranks[0]->peer_status(1).life == PeerLife::kLost;
  }));
}

// Sends a state frame of rank 0 to rank 1 on a new control connection: the first `bytes` bytes of it.
RawPeer sent_state(TestJob& job, const StateRecord& record, std::size_t bytes = kHeaderBytes + sizeof(StateRecord)) {
  RawPeer peer(job.addresses[1]);
  Preamble preamble = peer.preamble(job.options(1), 0);
  preamble.kind = TcpLinkKind::kControl;
  peer.write(preamble);
  const FrameHeader header{.kind = FrameKind::kState, .bytes = sizeof(record), .tag = call(record.entered)};
  std::string frame(bytes_of(header));
  frame += bytes_of(record);
  peer.write(frame.data(), bytes);
  return peer;
}

TEST(TcpState, ThatIsInvalidIsAnErrorThatNamesThePeer) {
  PlaintextJob job;
  const RawPeer peer = sent_state(job, {.entered = 1, .life = 99});
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kUnreachable), PeerLife::kUnreachable);
  EXPECT_EQ(job.ranks[1]->peer_trouble(0), "rank 0 sent data on its control connection that is no valid state frame");
}

TEST(TcpState, ThatWasCutDoesNotDamageTheNextConnection) {
  PlaintextJob job;
  RawPeer first = sent_state(job, {.entered = 1}, 30);
  first.close();
  // Rank 1 admits the second connection only after it has noticed the end of the first one.
  EXPECT_TRUE(eventually([&] {
    job.ranks[1]->pump();
    return job.ranks[1]->troubles().find("a connection to rank 0 ended: end of file") != std::string::npos;
  }));
  const RawPeer second = sent_state(job, {.entered = 2});
  EXPECT_TRUE(eventually([&] { return job.ranks[1]->pump(), job.ranks[1]->peer_call(0, 2) == call(2); }));
}

// The rank opens a connection while it waits for a message. TCP cannot connect to a broadcast address: the system
// refuses it with the same error as when it has no route to the peer.
TEST(TcpDeath, IsNotConcludedFromAMissingRoute) {
  HandClock clock;  // must outlive the ranks
  TestJob job;
  PeerAddress nowhere = PeerAddress::parse(job.addresses[1], 1).value();
  nowhere.socket = parse_address("127.255.255.255:" + std::to_string(nowhere.socket.port())).value();
  job.addresses[1] = nowhere.text();
  int error = 0;
  try_to_connect(nowhere.socket, error);
  ASSERT_EQ(error, ENETUNREACH);
  TcpTransportOptions options = job.options(0);
  options.clock = &clock;
  job.ranks[0] = nullptr;
  job.ranks[0] = TcpTransport::create(options, job.endpoints[0], job.addresses).value();
  auto receive = job.receive(1, 0);
  for (int look = 0; look < 200; ++look) {
    clock.advance(50'000'000);
    job.ranks[0]->pump();
    const PeerStatus status = job.ranks[0]->peer_status(1);
    ASSERT_EQ(status.life, PeerLife::kLive) << job.ranks[0]->peer_loss(1);
    ASSERT_FALSE(status.ended);
  }
  EXPECT_NE(job.ranks[0]->troubles().find("is there a route"), std::string::npos) << job.ranks[0]->troubles();
}

}  // namespace
}  // namespace tutti::tcp_test
