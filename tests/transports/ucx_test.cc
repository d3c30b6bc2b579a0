// The UCX transport's messages: order, integrity, credits, waiting, the end. Peers that break the rules are in
// ucx_faults_test.cc.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "transports/ucx/wire.h"
#include "ucx_support.h"

namespace tutti::ucx_test {
namespace {

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

const std::vector<std::size_t> kSizes = {0, 1, 7, 64, 1000, 4096, 8191, 8256, 16384, 65536, 100001, kSlotBytes};

// Sends every size a few times on each lane; every third message from a slot.
void send_all(World& world, std::uint32_t from, std::uint32_t to, std::uint16_t lanes, int rounds) {
  std::vector<std::unique_ptr<SendConnection>> connections;
  for (std::uint16_t lane = 0; lane < lanes; ++lane) connections.push_back(world.send(from, to, lane));
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (std::uint16_t lane = 0; lane < lanes; ++lane) {
        SendConnection& connection = *connections[lane];
        ASSERT_TRUE(eventually([&] { return world.ranks[from]->flush(), connection.ready(); }, 20000));
        auto data = pattern(kSizes[i], static_cast<unsigned>(round * 1000 + i * 10 + lane));
        if (i % 3 == 0) {
          if (!data.empty()) std::memcpy(connection.slot(), data.data(), data.size());
          connection.send_slot(data.size(), call(1));
        } else {
          connection.send_from(data.data(), data.size(), call(1));
          std::fill(data.begin(), data.end(), std::byte{0xee});  // the caller may change it at once
        }
      }
      world.ranks[from]->flush();
    }
  }
  for (const auto& connection : connections) {
    ASSERT_TRUE(eventually([&] { return world.ranks[from]->flush(), connection->handed_over(); }, 20000));
  }
}

void receive_all(World& world, std::uint32_t from, std::uint32_t to, std::uint16_t lanes, int rounds) {
  std::vector<std::unique_ptr<ReceiveConnection>> connections;
  for (std::uint16_t lane = 0; lane < lanes; ++lane) connections.push_back(world.receive(from, to, lane));
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (std::uint16_t lane = 0; lane < lanes; ++lane) {
        Arrival arrival = Arrival::kNothing;
        ASSERT_TRUE(eventually(
            [&] {
              world.ranks[to]->flush();
              return (arrival = connections[lane]->arrival(call(1))) != Arrival::kNothing;
            },
            20000));
        ASSERT_EQ(arrival, Arrival::kMessage);
        const Message got = connections[lane]->front();
        const auto expected = pattern(kSizes[i], static_cast<unsigned>(round * 1000 + i * 10 + lane));
        ASSERT_EQ(got.bytes, expected.size());
        ASSERT_EQ(got.carrier, Carrier::kSlot);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(got.data) % 16, 0u);
        ASSERT_TRUE(expected.empty() || std::memcmp(got.data, expected.data(), expected.size()) == 0)
            << "round " << round << " size " << kSizes[i] << " lane " << lane;
        connections[lane]->release();
      }
    }
  }
  // The last credits leave with the next flush.
  ASSERT_TRUE(eventually([&] { return world.ranks[to]->flush(); }));
}

struct Way {
  const char* transports = "";
  UcxPuts puts = UcxPuts::kByCards;
  World world(std::uint32_t count = 2, std::uint32_t slots = kSlots) const {
    return World(transports, count, slots, puts);
  }
};

class UcxMessages : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (!find_ucx()) GTEST_SKIP() << find_ucx().error().message;
  }
};

TEST_P(UcxMessages, ArriveWholeAndInOrderOnAllLanes) {
  World world = GetParam().world();
  std::thread sender([&] { send_all(world, 0, 1, 3, 8); });
  receive_all(world, 0, 1, 3, 8);
  sender.join();
}

TEST_P(UcxMessages, GoBothWaysAtOnceWithOneSlot) {
  World world = GetParam().world(2, 1);
  auto to_1 = world.send(0, 1);
  auto to_0 = world.send(1, 0);
  auto at_1 = world.receive(0, 1);
  auto at_0 = world.receive(1, 0);
  const auto there = pattern(50000, 1);
  const auto back = pattern(300, 2);
  for (std::uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(world.eventually([&] { return to_1->ready() && to_0->ready(); })) << i;
    to_1->send_from(there.data(), there.size(), call(i));
    to_0->send_from(back.data(), back.size(), call(i));
    EXPECT_FALSE(to_1->ready()) << "one slot";
    ASSERT_EQ(world.await(*at_1, call(i)), Arrival::kMessage);
    ASSERT_EQ(std::memcmp(at_1->front().data, there.data(), there.size()), 0);
    ASSERT_EQ(world.await(*at_0, call(i)), Arrival::kMessage);
    ASSERT_EQ(std::memcmp(at_0->front().data, back.data(), back.size()), 0);
    at_1->release();
    at_0->release();
  }
}

TEST_P(UcxMessages, StopAtTheSlotsUntilSomethingIsReleased) {
  World world = GetParam().world();
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  const auto data = pattern(100, 5);  // so few that only the slots make the receiver tell of a release
  std::size_t sent = 0;
  const auto fill = [&] {
    while (send->ready() && sent < 100) {
      send->send_from(data.data(), data.size(), call(1));
      ++sent;
    }
    return sent >= 100;
  };
  EXPECT_FALSE(tcp_test::eventually([&] { return world.turn(), fill(); }, 300));
  EXPECT_EQ(sent, kSlots) << "as many as there are slots, and no more";
  ASSERT_EQ(world.await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  ASSERT_TRUE(world.eventually([&] { return send->ready(); })) << "one release makes room where there was none";
  for (std::size_t received = 1; received < 60;) {
    world.turn();
    if (sent < 60 && send->ready()) send->send_from(data.data(), data.size(), call(1)), ++sent;
    if (receive->arrival(call(1)) == Arrival::kMessage) {
      ++received;
      ASSERT_EQ(std::memcmp(receive->front().data, data.data(), data.size()), 0);
      receive->release();
    }
  }
}

TEST_P(UcxMessages, OfEarlierCallsAreDroppedLaterOnesKeptOthersNamed) {
  World world = GetParam().world();
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  const auto data = pattern(50000, 3);
  send->send_from(data.data(), 10, call(1));
  send->send_from(data.data(), data.size(), call(1));
  send->send_from(data.data(), 20, call(3));
  EXPECT_EQ(world.await(*receive, call(2), 200), Arrival::kNothing) << "call 1 is over, call 3 is not ours yet";
  ASSERT_EQ(world.await(*receive, call(3)), Arrival::kMessage);
  EXPECT_EQ(receive->front().bytes, 20u);
  receive->release();
  ASSERT_TRUE(world.eventually([&] { return send->ready(); }));
  send->send_from(data.data(), 30, call(4, 11));
  ASSERT_EQ(world.await(*receive, call(4, 10)), Arrival::kMismatch);
  EXPECT_EQ(receive->mismatched_tag(), call(4, 11));
  EXPECT_EQ(world.ranks[1]->peer_call(0, 4), call(4, 11)) << "messages tell what the peer entered";
}

// A sleeping rank is woken by what comes, however the two interleave.
TEST_P(UcxMessages, WakeSleepers) {
  World world = GetParam().world();
  constexpr std::uint64_t kRounds = 1000;
  const auto run = [&](std::uint32_t rank, std::int64_t& longest_ns) {
    auto send = world.send(rank, 1 - rank);
    auto receive = world.receive(1 - rank, rank);
    SteadyClock clock;
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      if (rank == 0) send->send_from(nullptr, 0, call(i));
      Idle idle;
      AdaptiveWaiter waiter({.spins = 0, .yields = 0});
      const std::int64_t start_ns = clock.now_ns();
      while (receive->arrival(call(i)) == Arrival::kNothing) {
        world.ranks[rank]->flush();
        waiter.pause(idle, world.ranks[rank]->doorbell(), 10'000'000'000);
      }
      longest_ns = std::max(longest_ns, clock.now_ns() - start_ns);
      receive->release();
      if (rank == 1) send->send_from(nullptr, 0, call(i));
      world.ranks[rank]->flush();
    }
    eventually([&] { return send->handed_over(); });
  };
  std::int64_t longest_ns[2] = {0, 0};
  std::thread other([&] { run(1, longest_ns[1]); });
  run(0, longest_ns[0]);
  other.join();
  EXPECT_LT(longest_ns[0], 5'000'000'000) << "no sleep ran into its timeout";
  EXPECT_LT(longest_ns[1], 5'000'000'000);
}

// Everything that was sent can still be read once the sender is gone.
TEST_P(UcxMessages, AreThereAfterTheSenderHasLeft) {
  World world = GetParam().world();
  auto receive = world.receive(0, 1);
  const auto data = pattern(100000, 9);
  {
    auto send = world.send(0, 1);
    ASSERT_TRUE(eventually([&] {
      world.turn();
      return send->ready();
    }));
    send->send_from(data.data(), 100, call(1));
    send->send_from(data.data(), 5000, call(1));
    send->send_from(data.data(), data.size(), call(1));
  }
  std::thread leaver([&] { world.ranks[0] = nullptr; });  // waits until the long one has been drawn
  Arrival arrival = Arrival::kNothing;
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{5000}, data.size()}) {
    ASSERT_TRUE(eventually([&] {
      world.ranks[1]->pump();
      return (arrival = receive->arrival(call(1))) != Arrival::kNothing;
    })) << bytes;
    ASSERT_EQ(arrival, Arrival::kMessage);
    ASSERT_EQ(receive->front().bytes, bytes);
    ASSERT_EQ(std::memcmp(receive->front().data, data.data(), bytes), 0);
    receive->release();
    if (bytes == 100) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  leaver.join();
  EXPECT_TRUE(eventually([&] {
    world.ranks[1]->pump();
    return world.ranks[1]->peer_status(0).life == PeerLife::kLeft;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // longer than an error rests
  world.ranks[1]->pump();
  EXPECT_EQ(world.ranks[1]->peer_status(0).life, PeerLife::kLeft) << "and nothing is broken";
  EXPECT_FALSE(receive->may_bring_more());
}

void leave_unread(const Way& way) {
  World world = way.world();
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  ASSERT_TRUE(world.eventually([&] { return send->ready(); }));
  send->send_from(nullptr, 0, call(1));
  ASSERT_EQ(world.await(*receive, call(1)), Arrival::kMessage);
  const auto data = pattern(kSlotBytes, 1);
  send->send_from(data.data(), data.size(), call(1));
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  world.ranks[0] = nullptr;
  EXPECT_LT(clock.now_ns() - start_ns, 10'000'000'000);
  receive->release();
  EXPECT_TRUE(tcp_test::eventually([&] {
    world.turn();
    return world.ranks[1]->peer_status(0).life == PeerLife::kLeft;
  }));
}

// Nobody reads: the sender waits as long as it may, and goes. In a process of its own, which ends without looking back:
// over shared memory UCX keeps the worker.
TEST_P(UcxMessages, ThatNobodyReadsHoldUpTheEndForTwoSecondsAtMost) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    leave_unread(GetParam());
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_P(UcxMessages, OutliveTheirTransportAsConnections) {
  World world = GetParam().world();
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  send->send_from(nullptr, 0, call(1));
  ASSERT_EQ(world.await(*receive, call(1)), Arrival::kMessage);
  world.ranks.clear();
  EXPECT_EQ(receive->arrival(call(2)), Arrival::kNothing);
  EXPECT_TRUE(send->ready());
  send->send_from(nullptr, 0, call(2));
  EXPECT_TRUE(send->handed_over());
}

TEST_P(UcxMessages, AreNotSpokenForByAForkedChild) {
  auto world = std::make_unique<World>(GetParam().world());
  auto send = world->send(0, 1);
  auto receive = world->receive(0, 1);
  const std::byte byte{7};
  send->send_from(&byte, 1, call(1));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    send.reset();
    receive.reset();
    world.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(world->await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  EXPECT_EQ(world->await(*receive, call(1), 50), Arrival::kNothing) << "once only";
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(world->ranks[rank]->peer_status(1 - rank).life, PeerLife::kLive);
}

// Long messages are put into slots once these have been offered; the first ones, and short ones between them, are not.
TEST_P(UcxMessages, KeepTheirOrderWhenSomeArePutAndOthersNot) {
  World world = GetParam().world(2, 3);
  auto send = world.send(0, 1);
  auto receive = world.receive(0, 1);
  const std::size_t lengths[] = {kSlotBytes, 5, kUcxPutFrom, kUcxPutFrom - 1, 0, 50001, kSlotBytes};
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  ASSERT_TRUE(world.eventually(
      [&] {
        while (sent < 300 && send->ready()) {
          const auto data = pattern(lengths[sent % 7], static_cast<unsigned>(sent));
          send->send_pinned(data, data.data(), data.size(), call(1));
          ++sent;
        }
        if (receive->arrival(call(1)) != Arrival::kMessage) return false;
        const auto expected = pattern(lengths[received % 7], static_cast<unsigned>(received));
        const Message got = receive->front();
        EXPECT_EQ(got.bytes, expected.size()) << received;
        EXPECT_TRUE(expected.empty() || std::memcmp(got.data, expected.data(), expected.size()) == 0) << received;
        receive->release();
        return ++received == 300 || HasFailure();
      },
      60000));
}

std::string name_of(const Way& way) {
  const std::string name = way.transports;
  return name.substr(0, name.find(',')) + (way.puts == UcxPuts::kAlways ? "Put" : "");
}

void PrintTo(const Way& way, std::ostream* out) { *out << name_of(way); }

// Without a card, what is put goes by UCX's emulation, in the same order of the same calls.
INSTANTIATE_TEST_SUITE_P(Transports, UcxMessages,
                         testing::Values(Way{"tcp,self"}, Way{"sm,self"}, Way{"all"}, Way{"tcp,self", UcxPuts::kAlways},
                                         Way{"sm,self", UcxPuts::kAlways}, Way{"all", UcxPuts::kAlways}),
                         [](const auto& tested) { return name_of(tested.param); });

}  // namespace
}  // namespace tutti::ucx_test
