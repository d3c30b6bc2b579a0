// Tests of the UCX transport's messages: order, integrity, credits, waiting, and leaving. Peers that violate the
// protocol are tested in ucx_faults_test.cc.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/support/patience.h"
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

// Sends a message of every size on each lane, several times. Every third size is sent from a slot.
void send_all(TestJob& job, std::uint32_t from, std::uint32_t to, std::uint16_t lanes, int rounds) {
  std::vector<std::unique_ptr<SendConnection>> connections;
  for (std::uint16_t lane = 0; lane < lanes; ++lane) connections.push_back(job.send(from, to, lane));
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (std::uint16_t lane = 0; lane < lanes; ++lane) {
        SendConnection& connection = *connections[lane];
        ASSERT_TRUE(eventually([&] { return job.ranks[from]->flush(), connection.ready(); }, 20000));
        auto data = pattern(kSizes[i], static_cast<unsigned>(round * 1000 + i * 10 + lane));
        if (i % 3 == 0) {
          if (!data.empty()) std::memcpy(connection.slot(), data.data(), data.size());
          connection.send_slot(data.size(), call(1));
        } else {
          connection.send_from(data.data(), data.size(), call(1));
          // the caller may change the data as soon as the call returns
          std::fill(data.begin(), data.end(), std::byte{0xee});
        }
      }
      job.ranks[from]->flush();
    }
  }
  for (const auto& connection : connections) {
    ASSERT_TRUE(eventually([&] { return job.ranks[from]->flush(), connection->handed_over(); }, 20000));
  }
}

void receive_all(TestJob& job, std::uint32_t from, std::uint32_t to, std::uint16_t lanes, int rounds) {
  std::vector<std::unique_ptr<ReceiveConnection>> connections;
  for (std::uint16_t lane = 0; lane < lanes; ++lane) connections.push_back(job.receive(from, to, lane));
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (std::uint16_t lane = 0; lane < lanes; ++lane) {
        Arrival arrival = Arrival::kNothing;
        ASSERT_TRUE(eventually(
            [&] {
              job.ranks[to]->flush();
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
  // The last credits are sent by the next flush.
  ASSERT_TRUE(eventually([&] { return job.ranks[to]->flush(); }));
}

struct UcxSetting {
  const char* transports = "";
  UcxPuts puts = UcxPuts::kByCards;
  TestJob job(std::uint32_t count = 2, std::uint32_t slots = kSlots) const {
    return TestJob(transports, count, slots, puts);
  }
};

class UcxMessages : public testing::TestWithParam<UcxSetting> {
 protected:
  void SetUp() override {
    if (!find_ucx()) GTEST_SKIP() << find_ucx().error().message;
  }
};

TEST_P(UcxMessages, ArriveWholeAndInOrderOnAllLanes) {
  TestJob job = GetParam().job();
  std::thread sender([&] { send_all(job, 0, 1, 3, 8); });
  receive_all(job, 0, 1, 3, 8);
  sender.join();
}

TEST_P(UcxMessages, GoBothWaysAtOnceWithOneSlot) {
  TestJob job = GetParam().job(2, 1);
  auto to_1 = job.send(0, 1);
  auto to_0 = job.send(1, 0);
  auto at_1 = job.receive(0, 1);
  auto at_0 = job.receive(1, 0);
  const auto there = pattern(50000, 1);
  const auto back = pattern(300, 2);
  for (std::uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(job.eventually([&] { return to_1->ready() && to_0->ready(); })) << i;
    to_1->send_from(there.data(), there.size(), call(i));
    to_0->send_from(back.data(), back.size(), call(i));
    EXPECT_FALSE(to_1->ready()) << "the only slot is in use";
    ASSERT_EQ(job.await(*at_1, call(i)), Arrival::kMessage);
    ASSERT_EQ(std::memcmp(at_1->front().data, there.data(), there.size()), 0);
    ASSERT_EQ(job.await(*at_0, call(i)), Arrival::kMessage);
    ASSERT_EQ(std::memcmp(at_0->front().data, back.data(), back.size()), 0);
    at_1->release();
    at_0->release();
  }
}

TEST_P(UcxMessages, StopAtTheSlotsUntilSomethingIsReleased) {
  TestJob job = GetParam().job();
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const auto data = pattern(100, 5);  // so short that the receiver reports a release only because slots run out
  std::size_t sent = 0;
  const auto fill = [&] {
    while (send->ready() && sent < 100) {
      send->send_from(data.data(), data.size(), call(1));
      ++sent;
    }
    return sent >= 100;
  };
  EXPECT_FALSE(tcp_test::eventually([&] { return job.turn(), fill(); }, 300));
  EXPECT_EQ(sent, kSlots) << "only as many messages as slots may be sent";
  ASSERT_EQ(job.await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  ASSERT_TRUE(job.eventually([&] { return send->ready(); })) << "one release must free a slot";
  for (std::size_t received = 1; received < 60;) {
    job.turn();
    if (sent < 60 && send->ready()) send->send_from(data.data(), data.size(), call(1)), ++sent;
    if (receive->arrival(call(1)) == Arrival::kMessage) {
      ++received;
      ASSERT_EQ(std::memcmp(receive->front().data, data.data(), data.size()), 0);
      receive->release();
    }
  }
}

TEST_P(UcxMessages, OfEarlierCallsAreDroppedLaterOnesKeptOthersNamed) {
  TestJob job = GetParam().job();
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const auto data = pattern(50000, 3);
  send->send_from(data.data(), 10, call(1));
  send->send_from(data.data(), data.size(), call(1));
  send->send_from(data.data(), 20, call(3));
  EXPECT_EQ(job.await(*receive, call(2), 200), Arrival::kNothing)
      << "call 1 is over, and call 3 has not begun on this rank";
  ASSERT_EQ(job.await(*receive, call(3)), Arrival::kMessage);
  EXPECT_EQ(receive->front().bytes, 20u);
  receive->release();
  ASSERT_TRUE(job.eventually([&] { return send->ready(); }));
  send->send_from(data.data(), 30, call(4, 11));
  ASSERT_EQ(job.await(*receive, call(4, 10)), Arrival::kMismatch);
  EXPECT_EQ(receive->mismatched_tag(), call(4, 11));
  EXPECT_EQ(job.ranks[1]->peer_call(0, 4), call(4, 11)) << "a message shows which call the peer has entered";
}

// An arriving message wakes a sleeping rank, however arrival and falling asleep interleave.
TEST_P(UcxMessages, WakeSleepers) {
  TestJob job = GetParam().job();
  constexpr std::uint64_t kRounds = 1000;
  const auto run = [&](std::uint32_t rank, std::int64_t& longest_ns) {
    auto send = job.send(rank, 1 - rank);
    auto receive = job.receive(1 - rank, rank);
    SteadyClock clock;
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      if (rank == 0) send->send_from(nullptr, 0, call(i));
      Idle idle;
      AdaptiveWaiter waiter({.spins = 0, .yields = 0});
      const std::int64_t start_ns = clock.now_ns();
      while (receive->arrival(call(i)) == Arrival::kNothing) {
        job.ranks[rank]->flush();
        waiter.pause(idle, job.ranks[rank]->doorbell(), 10'000'000'000);
      }
      longest_ns = std::max(longest_ns, clock.now_ns() - start_ns);
      receive->release();
      if (rank == 1) send->send_from(nullptr, 0, call(i));
      job.ranks[rank]->flush();
    }
    eventually([&] { return send->handed_over(); });
  };
  std::int64_t longest_ns[2] = {0, 0};
  std::thread other([&] { run(1, longest_ns[1]); });
  run(0, longest_ns[0]);
  other.join();
  EXPECT_LT(longest_ns[0], 5'000'000'000) << "a sleep reached its timeout, so a wake-up was lost";
  EXPECT_LT(longest_ns[1], 5'000'000'000);
}

// All messages can still be read after the sender has left.
TEST_P(UcxMessages, AreThereAfterTheSenderHasLeft) {
  TestJob job = GetParam().job();
  auto receive = job.receive(0, 1);
  const auto data = pattern(100000, 9);
  {
    auto send = job.send(0, 1);
    ASSERT_TRUE(eventually([&] {
      job.turn();
      return send->ready();
    }));
    send->send_from(data.data(), 100, call(1));
    send->send_from(data.data(), 5000, call(1));
    send->send_from(data.data(), data.size(), call(1));
  }
  std::thread leaver([&] { job.ranks[0] = nullptr; });  // waits until the receiver has fetched the long message
  Arrival arrival = Arrival::kNothing;
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{5000}, data.size()}) {
    ASSERT_TRUE(eventually([&] {
      job.ranks[1]->pump();
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
    job.ranks[1]->pump();
    return job.ranks[1]->peer_status(0).life == PeerLife::kLeft;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // longer than the transport holds an error back
  job.ranks[1]->pump();
  EXPECT_EQ(job.ranks[1]->peer_status(0).life, PeerLife::kLeft) << "the peer must not be reported as lost";
  EXPECT_FALSE(receive->may_bring_more());
}

void leave_unread(const UcxSetting& setting) {
  TestJob job = setting.job();
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  ASSERT_TRUE(job.eventually([&] { return send->ready(); }));
  send->send_from(nullptr, 0, call(1));
  ASSERT_EQ(job.await(*receive, call(1)), Arrival::kMessage);
  const auto data = pattern(kSlotBytes, 1);
  send->send_from(data.data(), data.size(), call(1));
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  job.ranks[0] = nullptr;
  EXPECT_LT(clock.now_ns() - start_ns, std::chrono::nanoseconds(test::patience()).count());
  receive->release();
  EXPECT_TRUE(tcp_test::eventually([&] {
    job.turn();
    return job.ranks[1]->peer_status(0).life == PeerLife::kLeft;
  }));
}

// The receiver never reads. The sender waits for the allowed time and then leaves. This runs in a child process that
// exits without cleaning up, because over shared memory UCX keeps the worker.
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
  TestJob job = GetParam().job();
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  send->send_from(nullptr, 0, call(1));
  ASSERT_EQ(job.await(*receive, call(1)), Arrival::kMessage);
  job.ranks.clear();
  EXPECT_EQ(receive->arrival(call(2)), Arrival::kNothing);
  EXPECT_TRUE(send->ready());
  send->send_from(nullptr, 0, call(2));
  EXPECT_TRUE(send->handed_over());
}

TEST_P(UcxMessages, AreNotSpokenForByAForkedChild) {
  auto job = std::make_unique<TestJob>(GetParam().job());
  auto send = job->send(0, 1);
  auto receive = job->receive(0, 1);
  const std::byte byte{7};
  send->send_from(&byte, 1, call(1));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    send.reset();
    receive.reset();
    job.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(job->await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  EXPECT_EQ(job->await(*receive, call(1), 50), Arrival::kNothing) << "the message must arrive only once";
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job->ranks[rank]->peer_status(1 - rank).life, PeerLife::kLive);
}

// Long messages are written into slots as soon as slots have been offered. The first long messages, and short
// messages between the long ones, are sent as usual.
TEST_P(UcxMessages, KeepTheirOrderWhenSomeArePutAndOthersNot) {
  TestJob job = GetParam().job(2, 3);
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const std::size_t lengths[] = {kSlotBytes, 5, kUcxPutFrom, kUcxPutFrom - 1, 0, 50001, kSlotBytes};
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  ASSERT_TRUE(job.eventually(
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

std::string name_of(const UcxSetting& setting) {
  const std::string name = setting.transports;
  return name.substr(0, name.find(',')) + (setting.puts == UcxPuts::kAlways ? "Put" : "");
}

void PrintTo(const UcxSetting& setting, std::ostream* out) { *out << name_of(setting); }

// Without a network adapter, UCX emulates the writes. The calls and their order are the same.
INSTANTIATE_TEST_SUITE_P(Transports, UcxMessages,
                         testing::Values(UcxSetting{"tcp,self"}, UcxSetting{"sm,self"}, UcxSetting{"all"},
                                         UcxSetting{"tcp,self", UcxPuts::kAlways},
                                         UcxSetting{"sm,self", UcxPuts::kAlways}, UcxSetting{"all", UcxPuts::kAlways}),
                         [](const auto& tested) { return name_of(tested.param); });

}  // namespace
}  // namespace tutti::ucx_test
