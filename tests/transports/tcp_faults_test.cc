// Tests of TcpTransport when something goes wrong: close frames, aborts, calls that are late, and unknown processes
// that connect to the port.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "tcp_support.h"

namespace tutti::tcp_test {
namespace {

constexpr std::uint64_t kBytes = 60000;

class TcpGoodbye : public testing::TestWithParam<bool> {};

// The parameter is true if there are connections in both directions. As in the runtime, connections are destroyed
// before their transport.
TEST_P(TcpGoodbye, IsNoDeathAndLosesNoData) {
  TestJob job;
  // the receiver's kernel has space for three such messages and the close frame after them
  const std::uint64_t bytes = 20000;
  auto receive = job.receive(0, 1);
  const std::vector<std::byte> data(bytes, std::byte{9});
  {
    auto send = job.send(0, 1);
    auto back = GetParam() ? job.send(1, 0) : nullptr;
    auto back_receive = GetParam() ? job.receive(1, 0) : nullptr;
    if (back_receive) back_receive->arrival(call(1));
    job.ranks[0]->enter_call(call(1), {});
    for (int i = 0; i < 3; ++i) send->send_from(data.data(), data.size(), call(1));
    EXPECT_TRUE(job.flushed(0));
    job.ranks[0]->leave_call(call(1), std::nullopt);
  }
  job.ranks[0] = nullptr;
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kLeft), PeerLife::kLeft)
      << "the close frame counts even before the data has been read";
  EXPECT_TRUE(job.ranks[1]->peer_has_left(0, 1));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
    EXPECT_EQ(receive->front().bytes, bytes);
    receive->release();
  }
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kLeft), PeerLife::kLeft);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutAConnectionBack, TcpGoodbye, testing::Bool());

// The data is more than the receiver's kernel holds. So the close frame is still in the kernel of the sender, whose
// process has ended.
TEST(TcpGoodbye, IsNoDeathWhileItsDataIsStillComing) {
  TestJob job;
  auto receive = job.receive(0, 1);
  auto send = job.send(0, 1);
  const std::vector<std::byte> data(kBytes, std::byte{9});
  std::size_t sent = 0;
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  while (sent < 40 && clock.now_ns() - start_ns < 200'000'000) {
    job.endpoints[1]->service();
    if (!job.ranks[0]->flush() || !send->ready()) continue;
    send->send_from(data.data(), data.size(), call(1));
    ++sent;
  }
  // Data that is still in this process would prevent the close frame from being sent, so read until all of it has
  // been sent.
  std::size_t got = 0;
  const auto read_one = [&] {
    ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
    ASSERT_EQ(receive->front().bytes, kBytes);
    receive->release();
    ++got;
  };
  while (!job.ranks[0]->flush()) read_one();
  send = nullptr;
  job.ranks[0] = nullptr;
  job.endpoints[0] = nullptr;
  // so that rank 1 tries to report this call to rank 0, which refuses the connection
  job.ranks[1]->enter_call(call(1), {});
  EXPECT_FALSE(
      eventually([&] { return job.ranks[1]->pump(), job.ranks[1]->peer_status(0).life == PeerLife::kLost; }, 900));
  while (got < sent) read_one();
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kLeft), PeerLife::kLeft);
}

TEST(TcpGoodbye, OfAReceiverReachesItsSendersAndThoseWhoComeLate) {
  PlaintextJob job;
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const std::vector<std::byte> data(kBytes);
  send->send_from(data.data(), data.size(), call(1));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  send->send_from(data.data(), data.size(), call(1));  // never read, so the kernel resets the connection
  receive = nullptr;
  job.ranks[1] = nullptr;
  EXPECT_EQ(life_of(job, 0, 1, PeerLife::kLeft), PeerLife::kLeft);
  RawPeer late(job.addresses[1]);
  late.write(late.preamble(job.options(1), 0, 1));
  job.endpoints[1]->service();
  EXPECT_EQ(late.reply().kind, Reply::Kind::kClose);
}

TEST(TcpGoodbye, ReachesAReceiverWithoutAConnection) {
  PlaintextJob job;
  auto receive = job.receive(1, 0);
  job.ranks[1] = nullptr;
  EXPECT_TRUE(eventually([&] {
    job.endpoints[1]->service();  // the peer's process continues
    job.ranks[0]->pump();
    return job.ranks[0]->peer_status(1).life == PeerLife::kLeft;
  }));
}

TEST(TcpAbort, FromAnotherThreadReachesAPeerThatSleeps) {
  TestJob job(3);
  std::vector<PeerLife> seen(3, PeerLife::kLive);
  std::vector<std::thread> others;
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    others.emplace_back([&, rank] {
      eventually([&] {
        job.ranks[rank]->doorbell().arm();
        job.ranks[rank]->pump();
        seen[rank] = job.ranks[rank]->peer_status(0).life;
        if (seen[rank] == PeerLife::kLive) job.ranks[rank]->doorbell().sleep(1'000'000'000);
        return seen[rank] != PeerLife::kLive;
      });
    });
  }
  std::thread driver([&] {
    for (std::uint64_t i = 1; i < 200; ++i) {
      job.ranks[0]->enter_call(call(i), {});
      job.ranks[0]->pump();
      job.ranks[0]->leave_call(call(i), std::nullopt);
    }
  });
  job.ranks[0]->announce_abort();
  driver.join();
  for (auto& other : others) other.join();
  EXPECT_EQ(seen[1], PeerLife::kAborted);
  EXPECT_EQ(seen[2], PeerLife::kAborted);
}

TEST(TcpBoard, ShowsACallThatLastsAndAFailureAtOnce) {
  TestJob job;
  job.ranks[0]->enter_call(call(1, 33), {});
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  EXPECT_TRUE(eventually([&] {
    job.ranks[0]->pump();
    job.ranks[1]->pump();
    return job.ranks[1]->peer_call(0, 1) == call(1, 33);
  }));
  EXPECT_GE(clock.now_ns() - start_ns, 50'000'000) << "a call is reported only when it has lasted a while";
  EXPECT_EQ(job.ranks[1]->peer_status(0).entered, 1u);
  EXPECT_EQ(job.ranks[1]->peer_status(0).left, 0u);
  job.ranks[0]->leave_call(call(1, 33), std::nullopt);
  EXPECT_TRUE(eventually([&] { return job.ranks[1]->pump(), job.ranks[1]->peer_has_left(0, 1); }));
  const CallFailure failure{.code = ErrorCode::kMismatch, .culprit = 1, .argument = CallArgument::kCount};
  job.ranks[0]->enter_call(call(2), {});
  job.ranks[0]->leave_call(call(2), failure);
  EXPECT_TRUE(eventually([&] { return job.ranks[1]->pump(), job.ranks[1]->peer_failure(0, 2) == failure; }));
  EXPECT_FALSE(job.ranks[1]->peer_failure(0, 1).has_value());
}

TEST(TcpBoard, WhoHearsOfACallAnswersWithItsOwn) {
  TestJob job;
  job.ranks[0]->enter_call(call(1), {});
  job.ranks[1]->enter_call(call(1, 11), {});
  auto send = job.send(1, 0);
  auto receive = job.receive(1, 0);
  send->send_from(nullptr, 0, call(1, 11));
  EXPECT_TRUE(job.flushed(1));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMismatch);
  // Rank 0 never calls pump(): it reported its call when it found the mismatch.
  EXPECT_TRUE(eventually([&] {
    if (encrypted()) job.ranks[0]->pump();  // setting up the encrypted connection needs both sides
    return job.ranks[1]->peer_status(0).entered == 1;
  }));
  EXPECT_EQ(job.ranks[1]->peer_call(0, 1), call(1));
}

TEST(TcpStrangers, AreRefusedWhileTheRightOneGetsIn) {
  PlaintextJob job;
  auto receive = job.receive(0, 1);
  const TcpTransportOptions to = job.options(1);
  RawPeer garbage(job.addresses[1]);
  garbage.write("GET / HTTP/1.0\r\n\r\n", 18);
  RawPeer silent(job.addresses[1]);
  RawPeer version(job.addresses[1]);
  Preamble preamble = version.preamble(to, 0);
  preamble.version = 9;
  version.write(preamble);
  RawPeer nonce(job.addresses[1]);
  preamble = nonce.preamble(to, 0);
  preamble.nonce[3] ^= 1;
  nonce.write(preamble);
  RawPeer shape(job.addresses[1]);
  preamble = shape.preamble(to, 0);
  preamble.slot_bytes = 1;
  shape.write(preamble);
  RawPeer other_communicator(job.addresses[1]);
  preamble = other_communicator.preamble(to, 0);
  preamble.communicator = 78;
  other_communicator.write(preamble);
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
  auto send = job.send(0, 1);
  const std::byte byte{1};
  send->send_from(&byte, 1, call(1));
  job.ranks[0]->flush();
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  RawPeer twice(job.addresses[1]);
  twice.write(twice.preamble(to, 0));
  EXPECT_TRUE(eventually([&] { return job.ranks[1]->pump(), job.endpoints[1]->refusals().count == 5; }));
  EXPECT_EQ(version.reply().refusal, Refusal::kVersion);
  EXPECT_EQ(nonce.reply().refusal, Refusal::kNonce);
  EXPECT_EQ(shape.reply().refusal, Refusal::kShape);
  EXPECT_EQ(twice.reply().refusal, Refusal::kDuplicate);
  EXPECT_EQ(garbage.reply().kind, Reply::Kind::kEnded) << "no answer";
  EXPECT_EQ(other_communicator.reply(50).kind, Reply::Kind::kNothing)
      << "the connection waits, because its communicator may still be created";
  EXPECT_NE(job.ranks[1]->troubles().find("refused 5 connections on port"), std::string::npos);
  EXPECT_EQ(job.ranks[1]->peer_status(0).life, PeerLife::kLive)
      << "connections without the key must not change the peer's status";
}

TEST(TcpStrangers, ThatSendNonsenseAfterTheirPreambleAreCorruptNotTrusted) {
  PlaintextJob job(3);
  const auto attack = [&](std::uint32_t sender, FrameHeader frame) {
    auto receive = job.receive(sender, 1, 2);
    RawPeer peer(job.addresses[1]);
    peer.write(peer.preamble(job.options(1), sender, 2));
    peer.write(frame);
    return await(*receive, call(1));
  };
  FrameHeader too_long = message(kSlotBytes + 1, call(1));
  EXPECT_EQ(attack(0, too_long), Arrival::kCorrupt);
  FrameHeader unknown = message(8, call(1));
  unknown.kind = static_cast<FrameKind>(99);
  EXPECT_EQ(attack(2, unknown), Arrival::kCorrupt);
}

// A preamble that was overheard is sent again by a process that does not have the key.
TEST(TcpStrangers, ThatRepeatWhatARankHasSaidAreRefused) {
  PlaintextJob job;
  const TcpTransportOptions to = job.options(1);
  auto receive = job.receive(0, 1, 3);
  RawPeer first(job.addresses[1]);
  Preamble seen = first.preamble(to, 0, 3);
  seen.source = 99;
  seen.serial = 1;
  seen.proof = proof_of(seen, kKey);
  first.write_as_is(seen);
  first.write(message(0, call(1)));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  first.close();
  receive.reset();
  RawPeer again(job.addresses[1]);
  again.write_as_is(seen);
  RawPeer other_lane(job.addresses[1]);
  Preamble changed = seen;
  changed.lane = 4;
  changed.serial = 2;
  other_lane.write_as_is(changed);
  RawPeer no_key(job.addresses[1]);
  changed.proof = proof_of(changed, Key{9});
  no_key.write_as_is(changed);
  EXPECT_TRUE(eventually([&] { return job.ranks[1]->pump(), job.endpoints[1]->refusals().count == 3; }));
  EXPECT_EQ(again.reply().refusal, Refusal::kReplay);
  EXPECT_EQ(other_lane.reply().refusal, Refusal::kProof);
  EXPECT_EQ(no_key.reply().refusal, Refusal::kProof);
  // The same for a copy of a control connection's preamble. A control connection may be opened again after its end.
  RawPeer board(job.addresses[1]);
  Preamble control = board.preamble(to, 0);
  control.kind = TcpLinkKind::kControl;
  control.source = 99;
  control.serial = 2;
  control.proof = proof_of(control, kKey);
  board.write_as_is(control);
  job.ranks[1]->pump();
  board.close();
  for (int i = 0; i < 5; ++i) job.ranks[1]->pump();
  RawPeer replayed(job.addresses[1]);
  replayed.write_as_is(control);
  EXPECT_TRUE(eventually([&] { return job.ranks[1]->pump(), job.endpoints[1]->refusals().count == 4; }));
  EXPECT_EQ(replayed.reply().refusal, Refusal::kReplay);
}

TEST(TcpEndpoint, KnowsEveryOneOfItsLastThousandConnectionsByNumber) {
  auto port = endpoint({.address = "127.0.0.1", .most_parked = 4096});
  const TcpTransportOptions later{.rank = 1, .ranks = 2, .communicator = 5};
  const auto is_admitted = [&](std::uint64_t serial) {
    RawPeer peer(port->address());
    Preamble preamble = peer.preamble(later, 0, static_cast<std::uint16_t>(serial % 8));
    preamble.source = 7;
    preamble.serial = serial;
    preamble.proof = proof_of(preamble, kKey);
    peer.write_as_is(preamble);
    Reply reply;  // an accepted connection gets no reply
    eventually([&] { return port->service(), (reply = peer.reply(0)).kind != Reply::Kind::kNothing; }, 30);
    return reply.kind == Reply::Kind::kNothing;
  };
  for (const std::uint64_t serial : {1, 3, 2, 1000, 999, 1030, 8, 5000, 4990})
    EXPECT_TRUE(is_admitted(serial)) << serial;
  for (const std::uint64_t serial : {0, 1, 3, 1000, 1030, 7, 3976, 5000, 4990})
    EXPECT_FALSE(is_admitted(serial)) << serial;
  EXPECT_TRUE(is_admitted(3977)) << "the oldest number that is still remembered";
}

// A valid connection sends its first bytes late, and more unknown connections than the endpoint keeps arrive after
// it. It must still get its time.
TEST(TcpEndpoint, AConnectionHasAMomentToSpeakHoweverManyComeBehindIt) {
  PlaintextJob job;
  auto receive = job.receive(0, 1);
  RawPeer late(job.addresses[1]);
  job.endpoints[1]->service();
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 400; ++i) {
    silent.push_back(std::make_unique<RawPeer>(job.addresses[1]));
    if (i % 50 == 0) job.endpoints[1]->service();
  }
  job.endpoints[1]->service();
  late.write(late.preamble(job.options(1), 0));
  late.write(message(0, call(1)));
  EXPECT_EQ(await(*receive, call(1)), Arrival::kMessage);
}

// More silent connections arrive than the endpoint keeps. A rank that has the key must still connect at its first
// attempt.
TEST(TcpEndpoint, ManySilentConnectionsKeepNobodyOut) {
  PlaintextJob job;
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 600; ++i) {
    silent.push_back(std::make_unique<RawPeer>(job.addresses[1]));
    if (i % 100 == 0) job.endpoints[1]->service();
  }
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const std::byte byte{1};
  send->send_from(&byte, 1, call(1));
  job.ranks[0]->flush();
  EXPECT_EQ(await(*receive, call(1), {}, 5000), Arrival::kMessage);
  EXPECT_EQ(job.ranks[1]->peer_status(0).life, PeerLife::kLive);
}

TEST(TcpEndpoint, GivesUpOnTheSilentAndBoundsWhatItParks) {
  EXPECT_EQ(TcpEndpointOptions{}.preamble_timeout_ns, 5'000'000'000) << "docs/security.md names this number";
  auto port = endpoint({.address = "127.0.0.1", .preamble_timeout_ns = 50'000'000, .most_parked = 3});
  RawPeer silent(port->address());
  port->service();
  EXPECT_EQ(port->refusals().count, 0u);
  EXPECT_TRUE(eventually([&] { return port->service(), port->refusals().count == 1; }));
  EXPECT_EQ(silent.reply().kind, Reply::Kind::kRefused);
  const TcpTransportOptions later{.rank = 1, .ranks = 2, .communicator = 5};
  std::vector<RawPeer> peers;
  for (std::uint16_t lane = 0; lane < 4; ++lane) {
    peers.emplace_back(port->address());
    peers.back().write(peers.back().preamble(later, 0, lane));
    EXPECT_TRUE(eventually([&] { return port->service(), true; }));
  }
  EXPECT_TRUE(eventually([&] { return port->service(), port->refusals().count == 2; }));
  EXPECT_EQ(peers[3].reply().refusal, Refusal::kFull);
  // The communicator is created, and accepts the connections that were waiting for it.
  auto transport = TcpTransport::create(later, port, {port->address(), ""}).value();
  for (std::uint16_t lane = 0; lane < 3; ++lane) {
    auto receive = transport->open_receive(0, lane).value();
    peers[lane].write(message(0, call(1)));
    EXPECT_EQ(await(*receive, call(1)), Arrival::kMessage);
  }
}

TEST(TcpEndpoint, StaysInItsPortRangeAndSaysWhenThatIsFull) {
  auto first = endpoint();
  const std::uint16_t port = PeerAddress::parse(first->address(), 0)->socket.port();
  const auto full = TcpEndpoint::listen({.address = "127.0.0.1", .first_port = port, .last_port = port});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kSystem);
  EXPECT_NE(full.error().message.find("no free port"), std::string::npos) << full.error().message;
  first = nullptr;
  EXPECT_TRUE(TcpEndpoint::listen({.address = "127.0.0.1", .first_port = port, .last_port = port, .key = kKey}).ok());
  EXPECT_EQ(TcpEndpoint::listen({.address = "localhost"}).error().code, ErrorCode::kConfig);
  EXPECT_EQ(TcpEndpoint::listen({.address = "0.0.0.0"}).error().code, ErrorCode::kConfig);
  EXPECT_EQ(TcpEndpoint::listen({.address = "127.0.0.1", .first_port = 9, .last_port = 8}).error().code,
            ErrorCode::kConfig);
}

TEST(TcpEndpoint, AddressesOfPeersAreChecked) {
  const std::string nonce(32, 'a');
  EXPECT_TRUE(PeerAddress::parse("127.0.0.1:80/" + nonce, 1).ok());
  EXPECT_EQ(PeerAddress::parse("[::1]:80/" + nonce, 1)->text(), "[::1]:80/" + nonce);
  for (const std::string& bad :
       std::vector<std::string>{std::string(), "127.0.0.1/" + nonce, "127.0.0.1:80", "127.0.0.1:0/" + nonce,
                                "127.0.0.1:99999/" + nonce, "host:80/" + nonce, "127.0.0.1:80/" + std::string(32, 'g'),
                                "127.0.0.1:80/" + nonce + "a", std::string(200, 'a')}) {
    EXPECT_EQ(PeerAddress::parse(bad, 1).error().code, ErrorCode::kRefused) << bad;
  }
}

TEST(TcpEndpoint, SaysWhenDescriptorsRunOut) {
  TestJob job;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto refused = job.ranks[0]->open_send(1, 1);
  receive->arrival(call(1));
  const std::string troubles = job.ranks[1]->troubles();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("ulimit -n"), std::string::npos) << refused.error().message;
  EXPECT_NE(troubles.find("ulimit -n"), std::string::npos) << troubles;
  send->send_from(nullptr, 0, call(1));
  EXPECT_TRUE(job.flushed(0));
  EXPECT_EQ(await(*receive, call(1)), Arrival::kMessage) << "the message must arrive once descriptors are free again";
}

// The connection that carries the abort is opened as soon as descriptors are free again.
TEST(TcpFaults, WithoutDescriptorsAnAbortIsToldLater) {
  TestJob job;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  job.ranks[0]->announce_abort();
  const std::string troubles = job.ranks[0]->troubles();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(troubles.find("ulimit -n"), std::string::npos) << troubles;
  EXPECT_TRUE(eventually([&] {
    for (auto& rank : job.ranks) rank->pump();
    return job.ranks[1]->peer_status(0).life == PeerLife::kAborted;
  }));
  EXPECT_EQ(job.ranks[0]->troubles(), "");
}

// A peer that does not read fills the socket and then the queue of states. When it reads again, it must learn the last
// state, here that the rank has aborted, although the queue was full at the abort.
TEST(TcpState, APeerThatReadsLateLearnsOfAnAbort) {
  constexpr int kFramesBeyondTheQueue = 500;
  PlaintextJob job;
  const auto own_endpoint = endpoint();
  const auto doorbell = EpollDoorbell::create().value();
  SteadyClock clock;
  const TcpTransportOptions options = job.options(0);
  Preamble mine;
  mine.communicator = options.communicator;
  mine.ranks = options.ranks;
  mine.slot_bytes = options.slot_bytes;
  StatePusher pusher(mine, {std::nullopt, PeerAddress::parse(job.addresses[1], 1).value()}, *own_endpoint, *doorbell,
                     clock);
  std::uint64_t sequence = 0;
  const auto send_state = [&] {
    pusher.enter(call(++sequence));
    pusher.push_now();
    pusher.leave(call(sequence), std::nullopt);
  };
  do send_state();
  while (pusher.flush());
  for (int i = 0; i < kFramesBeyondTheQueue; ++i) send_state();
  pusher.abort();
  EXPECT_TRUE(eventually([&] {
    pusher.flush();
    job.ranks[1]->pump();
    return job.ranks[1]->peer_status(0).life == PeerLife::kAborted;
  })) << "after "
      << sequence << " states";
}

// The reason of a refusal is a number from the network. A number of a later version must not be taken for another
// reason.
TEST(TcpWire, ARefusalForAReasonThatIsNotKnownHereSaysSo) {
  for (const int number : {static_cast<int>(Refusal::kUnknown), 200, 255}) {
    FrameHeader frame = refusal_frame(Refusal::kShape);
    EXPECT_EQ(reply_of(frame).refusal, Refusal::kShape);
    frame.tag.kind = static_cast<std::uint8_t>(number);
    EXPECT_EQ(reply_of(frame).refusal, Refusal::kUnknown);
    EXPECT_EQ(to_string(reply_of(frame).refusal), "unknown reason");
  }
}

}  // namespace
}  // namespace tutti::tcp_test
