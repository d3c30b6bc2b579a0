// The TCP transport when something is wrong: goodbyes, aborts, late calls, strangers on the port.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "tcp_support.h"

namespace tutti::tcp_test {
namespace {

constexpr std::uint64_t kBytes = 60000;

class TcpGoodbye : public testing::TestWithParam<bool> {};

// With a connection both ways and with one way only; connections destroyed before their transport, as the runtime does.
TEST_P(TcpGoodbye, IsNoDeathAndLosesNoData) {
  World world;
  const std::uint64_t bytes = 20000;  // three of them fit into the receiver's kernel, and the goodbye behind them
  auto receive = world.receive(0, 1);
  const std::vector<std::byte> data(bytes, std::byte{9});
  {
    auto send = world.send(0, 1);
    auto back = GetParam() ? world.send(1, 0) : nullptr;
    auto back_receive = GetParam() ? world.receive(1, 0) : nullptr;
    if (back_receive) back_receive->arrival(call(1));
    world.ranks[0]->enter_call(call(1), {});
    for (int i = 0; i < 3; ++i) send->send_from(data.data(), data.size(), call(1));
    EXPECT_TRUE(world.flushed(0));
    world.ranks[0]->leave_call(call(1), std::nullopt);
  }
  world.ranks[0] = nullptr;
  EXPECT_EQ(life_of(world, 1, 0, PeerLife::kLeft), PeerLife::kLeft) << "before its data is read";
  EXPECT_TRUE(world.ranks[1]->peer_has_left(0, 1));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
    EXPECT_EQ(receive->front().bytes, bytes);
    receive->release();
  }
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
  EXPECT_EQ(life_of(world, 1, 0, PeerLife::kLeft), PeerLife::kLeft);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutAConnectionBack, TcpGoodbye, testing::Bool());

// More data than the receiver's kernel holds: the goodbye is still in the sender's, whose process is gone.
TEST(TcpGoodbye, IsNoDeathWhileItsDataIsStillComing) {
  World world;
  auto receive = world.receive(0, 1);
  auto send = world.send(0, 1);
  const std::vector<std::byte> data(kBytes, std::byte{9});
  std::size_t sent = 0;
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  while (sent < 40 && clock.now_ns() - start_ns < 200'000'000) {
    world.endpoints[1]->service();
    if (!world.ranks[0]->flush() || !send->ready()) continue;
    send->send_from(data.data(), data.size(), call(1));
    ++sent;
  }
  // What is left in this process would take the goodbye's place: read until it is gone.
  std::size_t got = 0;
  const auto read_one = [&] {
    ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
    ASSERT_EQ(receive->front().bytes, kBytes);
    receive->release();
    ++got;
  };
  while (!world.ranks[0]->flush()) read_one();
  send = nullptr;
  world.ranks[0] = nullptr;
  world.endpoints[0] = nullptr;
  world.ranks[1]->enter_call(call(1), {});  // lasts, so that rank 1 tries to tell rank 0 of it, and is refused
  EXPECT_FALSE(
      eventually([&] { return world.ranks[1]->pump(), world.ranks[1]->peer_status(0).life == PeerLife::kLost; }, 900));
  while (got < sent) read_one();
  EXPECT_EQ(life_of(world, 1, 0, PeerLife::kLeft), PeerLife::kLeft);
}

TEST(TcpGoodbye, OfAReceiverReachesItsSendersAndThoseWhoComeLate) {
  ClearWorld world;
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  const std::vector<std::byte> data(kBytes);
  send->send_from(data.data(), data.size(), call(1));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  send->send_from(data.data(), data.size(), call(1));  // unread: the kernel resets the connection
  receive = nullptr;
  world.ranks[1] = nullptr;
  EXPECT_EQ(life_of(world, 0, 1, PeerLife::kLeft), PeerLife::kLeft);
  RawPeer late(world.addresses[1]);
  late.write(late.preamble(world.options(1), 0, 1));
  world.endpoints[1]->service();
  EXPECT_EQ(late.reply().kind, Reply::Kind::kGoodbye);
}

TEST(TcpGoodbye, ReachesAReceiverWithoutAConnection) {
  ClearWorld world;
  auto receive = world.receive(1, 0);
  world.ranks[1] = nullptr;
  EXPECT_TRUE(eventually([&] {
    world.endpoints[1]->service();  // its process lives on
    world.ranks[0]->pump();
    return world.ranks[0]->peer_status(1).life == PeerLife::kLeft;
  }));
}

TEST(TcpAbort, FromAnotherThreadReachesAPeerThatSleeps) {
  World world(3);
  std::vector<PeerLife> seen(3, PeerLife::kLive);
  std::vector<std::thread> others;
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    others.emplace_back([&, rank] {
      eventually([&] {
        world.ranks[rank]->doorbell().arm();
        world.ranks[rank]->pump();
        seen[rank] = world.ranks[rank]->peer_status(0).life;
        if (seen[rank] == PeerLife::kLive) world.ranks[rank]->doorbell().sleep(1'000'000'000);
        return seen[rank] != PeerLife::kLive;
      });
    });
  }
  std::thread driver([&] {
    for (std::uint64_t i = 1; i < 200; ++i) {
      world.ranks[0]->enter_call(call(i), {});
      world.ranks[0]->pump();
      world.ranks[0]->leave_call(call(i), std::nullopt);
    }
  });
  world.ranks[0]->announce_abort();
  driver.join();
  for (auto& other : others) other.join();
  EXPECT_EQ(seen[1], PeerLife::kAborted);
  EXPECT_EQ(seen[2], PeerLife::kAborted);
}

TEST(TcpBoard, ShowsACallThatLastsAndAFailureAtOnce) {
  World world;
  world.ranks[0]->enter_call(call(1, 33), {});
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  EXPECT_TRUE(eventually([&] {
    world.ranks[0]->pump();
    world.ranks[1]->pump();
    return world.ranks[1]->peer_call(0, 1) == call(1, 33);
  }));
  EXPECT_GE(clock.now_ns() - start_ns, 50'000'000) << "not before it is late";
  EXPECT_EQ(world.ranks[1]->peer_status(0).entered, 1u);
  EXPECT_EQ(world.ranks[1]->peer_status(0).left, 0u);
  world.ranks[0]->leave_call(call(1, 33), std::nullopt);
  EXPECT_TRUE(eventually([&] { return world.ranks[1]->pump(), world.ranks[1]->peer_has_left(0, 1); }));
  const CallFailure failure{.code = ErrorCode::kMismatch, .culprit = 1, .argument = CallArgument::kCount};
  world.ranks[0]->enter_call(call(2), {});
  world.ranks[0]->leave_call(call(2), failure);
  EXPECT_TRUE(eventually([&] { return world.ranks[1]->pump(), world.ranks[1]->peer_failure(0, 2) == failure; }));
  EXPECT_FALSE(world.ranks[1]->peer_failure(0, 1).has_value());
}

TEST(TcpBoard, WhoHearsOfACallAnswersWithItsOwn) {
  World world;
  world.ranks[0]->enter_call(call(1), {});
  world.ranks[1]->enter_call(call(1, 11), {});
  auto send = world.send(1, 0);
  auto receive = world.receive(1, 0);
  send->send_from(nullptr, 0, call(1, 11));
  EXPECT_TRUE(world.flushed(1));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMismatch);
  // Rank 0 never gets to pump(): it told of its call when it found the mismatch.
  EXPECT_TRUE(eventually([&] {
    if (encrypted()) world.ranks[0]->pump();  // setting up its connection takes it
    return world.ranks[1]->peer_status(0).entered == 1;
  }));
  EXPECT_EQ(world.ranks[1]->peer_call(0, 1), call(1));
}

TEST(TcpStrangers, AreRefusedWhileTheRightOneGetsIn) {
  ClearWorld world;
  auto receive = world.receive(0, 1);
  const TcpTransportOptions to = world.options(1);
  RawPeer garbage(world.addresses[1]);
  garbage.write("GET / HTTP/1.0\r\n\r\n", 18);
  RawPeer silent(world.addresses[1]);
  RawPeer version(world.addresses[1]);
  Preamble preamble = version.preamble(to, 0);
  preamble.version = 9;
  version.write(preamble);
  RawPeer nonce(world.addresses[1]);
  preamble = nonce.preamble(to, 0);
  preamble.nonce[3] ^= 1;
  nonce.write(preamble);
  RawPeer shape(world.addresses[1]);
  preamble = shape.preamble(to, 0);
  preamble.slot_bytes = 1;
  shape.write(preamble);
  RawPeer elsewhere(world.addresses[1]);
  preamble = elsewhere.preamble(to, 0);
  preamble.communicator = 78;
  elsewhere.write(preamble);
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
  auto send = world.send(0, 1);
  const std::byte byte{1};
  send->send_from(&byte, 1, call(1));
  world.ranks[0]->flush();
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  RawPeer twice(world.addresses[1]);
  twice.write(twice.preamble(to, 0));
  EXPECT_TRUE(eventually([&] { return world.ranks[1]->pump(), world.endpoints[1]->refusals().count == 5; }));
  EXPECT_EQ(version.reply().refusal, Refusal::kVersion);
  EXPECT_EQ(nonce.reply().refusal, Refusal::kNonce);
  EXPECT_EQ(shape.reply().refusal, Refusal::kShape);
  EXPECT_EQ(twice.reply().refusal, Refusal::kDuplicate);
  EXPECT_EQ(garbage.reply().kind, Reply::Kind::kEnded) << "no answer";
  EXPECT_EQ(elsewhere.reply(50).kind, Reply::Kind::kNothing) << "parked: its communicator may come yet";
  EXPECT_NE(world.ranks[1]->troubles().find("refused 5 connections on port"), std::string::npos);
  EXPECT_EQ(world.ranks[1]->peer_status(0).life, PeerLife::kLive) << "whatever strangers claim";
}

TEST(TcpStrangers, ThatSendNonsenseAfterTheirPreambleAreCorruptNotTrusted) {
  ClearWorld world(3);
  const auto attack = [&](std::uint32_t sender, FrameHeader frame) {
    auto receive = world.receive(sender, 1, 2);
    RawPeer peer(world.addresses[1]);
    peer.write(peer.preamble(world.options(1), sender, 2));
    peer.write(frame);
    return await(*receive, call(1));
  };
  FrameHeader too_long = message(kSlotBytes + 1, call(1));
  EXPECT_EQ(attack(0, too_long), Arrival::kCorrupt);
  FrameHeader unknown = message(8, call(1));
  unknown.kind = static_cast<FrameKind>(99);
  EXPECT_EQ(attack(2, unknown), Arrival::kCorrupt);
}

// A preamble that was seen on its way, sent again: by somebody who does not have the key.
TEST(TcpStrangers, ThatRepeatWhatARankHasSaidAreRefused) {
  ClearWorld world;
  const TcpTransportOptions to = world.options(1);
  auto receive = world.receive(0, 1, 3);
  RawPeer first(world.addresses[1]);
  Preamble seen = first.preamble(to, 0, 3);
  seen.source = 99;
  seen.serial = 1;
  seen.proof = proof_of(seen, kKey);
  first.write_as_is(seen);
  first.write(message(0, call(1)));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  first.close();
  receive.reset();
  RawPeer again(world.addresses[1]);
  again.write_as_is(seen);
  RawPeer other_lane(world.addresses[1]);
  Preamble changed = seen;
  changed.lane = 4;
  changed.serial = 2;
  other_lane.write_as_is(changed);
  RawPeer no_key(world.addresses[1]);
  changed.proof = proof_of(changed, Key{9});
  no_key.write_as_is(changed);
  EXPECT_TRUE(eventually([&] { return world.ranks[1]->pump(), world.endpoints[1]->refusals().count == 3; }));
  EXPECT_EQ(again.reply().refusal, Refusal::kReplay);
  EXPECT_EQ(other_lane.reply().refusal, Refusal::kProof);
  EXPECT_EQ(no_key.reply().refusal, Refusal::kProof);
  // Where the copied one is of a control connection, which may be made anew after its end: a copy of that, too.
  RawPeer board(world.addresses[1]);
  Preamble control = board.preamble(to, 0);
  control.kind = TcpLinkKind::kControl;
  control.source = 99;
  control.serial = 2;
  control.proof = proof_of(control, kKey);
  board.write_as_is(control);
  world.ranks[1]->pump();
  board.close();
  for (int i = 0; i < 5; ++i) world.ranks[1]->pump();
  RawPeer liar(world.addresses[1]);
  liar.write_as_is(control);
  EXPECT_TRUE(eventually([&] { return world.ranks[1]->pump(), world.endpoints[1]->refusals().count == 4; }));
  EXPECT_EQ(liar.reply().refusal, Refusal::kReplay);
}

TEST(TcpEndpoint, KnowsEveryOneOfItsLastThousandConnectionsByNumber) {
  auto port = endpoint({.address = "127.0.0.1", .most_parked = 4096});
  const TcpTransportOptions later{.rank = 1, .ranks = 2, .communicator = 5};
  const auto comes = [&](std::uint64_t serial) {
    RawPeer peer(port->address());
    Preamble preamble = peer.preamble(later, 0, static_cast<std::uint16_t>(serial % 8));
    preamble.source = 7;
    preamble.serial = serial;
    preamble.proof = proof_of(preamble, kKey);
    peer.write_as_is(preamble);
    Reply reply;  // what is admitted is told nothing
    eventually([&] { return port->service(), (reply = peer.reply(0)).kind != Reply::Kind::kNothing; }, 30);
    return reply.kind == Reply::Kind::kNothing;
  };
  for (const std::uint64_t serial : {1, 3, 2, 1000, 999, 1030, 8, 5000, 4990}) EXPECT_TRUE(comes(serial)) << serial;
  for (const std::uint64_t serial : {0, 1, 3, 1000, 1030, 7, 3976, 5000, 4990}) EXPECT_FALSE(comes(serial)) << serial;
  EXPECT_TRUE(comes(3977)) << "the last one of the window";
}

// One of ours whose first bytes are late, and behind it more strangers than there are places: it has its time.
TEST(TcpEndpoint, AConnectionHasAMomentToSpeakHoweverManyComeBehindIt) {
  ClearWorld world;
  auto receive = world.receive(0, 1);
  RawPeer late(world.addresses[1]);
  world.endpoints[1]->service();
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 400; ++i) {
    silent.push_back(std::make_unique<RawPeer>(world.addresses[1]));
    if (i % 50 == 0) world.endpoints[1]->service();
  }
  world.endpoints[1]->service();
  late.write(late.preamble(world.options(1), 0));
  late.write(message(0, call(1)));
  EXPECT_EQ(await(*receive, call(1)), Arrival::kMessage);
}

// More silent connections than there are places: who has the key comes in all the same, with no try in vain.
TEST(TcpEndpoint, ManySilentConnectionsKeepNobodyOut) {
  ClearWorld world;
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 600; ++i) {
    silent.push_back(std::make_unique<RawPeer>(world.addresses[1]));
    if (i % 100 == 0) world.endpoints[1]->service();
  }
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  const std::byte byte{1};
  send->send_from(&byte, 1, call(1));
  world.ranks[0]->flush();
  EXPECT_EQ(await(*receive, call(1), {}, 5000), Arrival::kMessage);
  EXPECT_EQ(world.ranks[1]->peer_status(0).life, PeerLife::kLive);
}

TEST(TcpEndpoint, GivesUpOnTheSilentAndBoundsWhatItParks) {
  EXPECT_EQ(TcpEndpointOptions{}.patience_ns, 5'000'000'000) << "docs/security.md names this number";
  auto port = endpoint({.address = "127.0.0.1", .patience_ns = 50'000'000, .most_parked = 3});
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
  // The communicator comes, and with it those that were parked.
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
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's check of types needs descriptors of its own";
#endif
  World world;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto refused = world.ranks[0]->open_send(1, 1);
  receive->arrival(call(1));
  const std::string troubles = world.ranks[1]->troubles();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("ulimit -n"), std::string::npos) << refused.error().message;
  EXPECT_NE(troubles.find("ulimit -n"), std::string::npos) << troubles;
  send->send_from(nullptr, 0, call(1));
  EXPECT_TRUE(world.flushed(0));
  EXPECT_EQ(await(*receive, call(1)), Arrival::kMessage) << "as soon as there are some again";
}

// The connection for it is made as soon as there are some again.
TEST(TcpFaults, WithoutDescriptorsAnAbortIsToldLater) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's check of types needs descriptors of its own";
#endif
  World world;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  world.ranks[0]->announce_abort();
  const std::string troubles = world.ranks[0]->troubles();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(troubles.find("ulimit -n"), std::string::npos) << troubles;
  EXPECT_TRUE(eventually([&] {
    for (auto& rank : world.ranks) rank->pump();
    return world.ranks[1]->peer_status(0).life == PeerLife::kAborted;
  }));
  EXPECT_EQ(world.ranks[0]->troubles(), "");
}

}  // namespace
}  // namespace tutti::tcp_test
