// Tests of MixedTransport. All ranks are in one process, on simulated machines: they use shared memory inside a
// machine, and a fake network (fake_remote.h) between machines. The tests call pump() and flush() by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "fake_remote.h"
#include "shm_ranks.h"
#include "tests/support/patience.h"
#include "transports/mixed/mixed_transport.h"

namespace tutti {
namespace {

enum class Inside { kThreads, kSockets };

// machines[m] lists the ranks of machine m, ordered by their local rank.
using Machines = std::vector<std::vector<std::uint32_t>>;

struct Cluster {
  std::shared_ptr<FakeNet> net;
  std::vector<FakeRemote*> remotes;  // indexed by rank, owned by `ranks`
  std::vector<std::unique_ptr<MixedTransport>> ranks;

  explicit Cluster(const Machines& machines, Inside inside = Inside::kThreads, Trigger trigger = Trigger::kLevel) {
    std::uint32_t count = 0;
    for (const auto& machine : machines) count += static_cast<std::uint32_t>(machine.size());
    net = std::make_shared<FakeNet>(count, trigger);
    remotes.resize(count);
    ranks.resize(count);
    for (const std::vector<std::uint32_t>& machine : machines) {
      const auto local_ranks = static_cast<std::uint32_t>(machine.size());
      const SegmentShape shape{.ranks = local_ranks, .slots = 2, .slot_bytes = FakeNet::kSlotBytes};
      auto locals = shm_ranks(
          shape, inside == Inside::kThreads ? in_process_exchanges(local_ranks) : unix_exchanges(local_ranks));
      MixedOptions options{.ranks = count, .local_index = std::vector<std::int32_t>(count, -1)};
      for (std::uint32_t i = 0; i < local_ranks; ++i) options.local_index[machine[i]] = static_cast<std::int32_t>(i);
      for (std::uint32_t i = 0; i < local_ranks; ++i) {
        options.rank = machine[i];
        auto remote = std::make_unique<FakeRemote>(net, machine[i]);
        remotes[machine[i]] = remote.get();
        PollDoorbell& doorbell = remote->poll_doorbell();
        ranks[machine[i]] = MixedTransport::create(options, std::move(locals[i]), std::move(remote), doorbell).value();
      }
    }
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks.size()); }
};

const Machines kTwoByTwo = {{2, 0}, {1, 3}};  // the ranks of a machine are neither contiguous nor ascending

void all_pairs_talk(Cluster& cluster, std::uint64_t expected_across) {
  std::uint64_t before = cluster.net->carried;
  for (std::uint32_t from = 0; from < cluster.size(); ++from) {
    for (std::uint32_t to = 0; to < cluster.size(); ++to) {
      if (from == to) continue;
      auto send = cluster.ranks[from]->open_send(to, 1).value();
      auto receive = cluster.ranks[to]->open_receive(from, 1).value();
      const std::string text = fmt::format("{} to {}", from, to);
      send_text(*send, text, call(1));
      ASSERT_EQ(receive->arrival(call(1)), Arrival::kMessage) << text;
      EXPECT_EQ(text_of(receive->front()), text);
      EXPECT_FALSE(send->drained());
      receive->release();
      EXPECT_TRUE(send->drained());
    }
  }
  EXPECT_EQ(cluster.net->carried - before, expected_across);
}

TEST(Mixed, MessagesGoByMemoryInsideAMachineAndByTheOtherTransportAcross) {
  Cluster cluster(kTwoByTwo);
  EXPECT_EQ(cluster.ranks[0]->slots(), 2u) << "the smaller of 2 and 3";
  EXPECT_EQ(cluster.ranks[0]->lanes(), 2u) << "the smaller of 8 and 2";
  EXPECT_EQ(cluster.ranks[0]->slot_bytes(), FakeNet::kSlotBytes);
  all_pairs_talk(cluster, 8);
}

TEST(Mixed, WorksWithARankAloneOnItsMachineAndWithOneMachineOnly) {
  Cluster alone({{1}, {0, 2}});
  all_pairs_talk(alone, 4);
  Cluster one({{1, 0, 2}});
  all_pairs_talk(one, 0);
  Cluster single(Machines{{0}});
  EXPECT_EQ(single.ranks[0]->peer_status(0).life, PeerLife::kLive);
}

TEST(Mixed, RegisteredMemoryIsReadInPlaceByLocalPeersAndSentToRemoteOnes) {
  Cluster cluster(kTwoByTwo);
  auto window = cluster.ranks[0]->allocate_window(8192).value();
  std::strcpy(reinterpret_cast<char*>(window->data()) + 6000, "registered");
  const WindowRef place = cluster.ranks[0]->find_window(window->data() + 6000, 11);
  ASSERT_NE(place.window, 0u);
  for (const auto& [peer, carrier] : {std::pair(2u, Carrier::kPublished), std::pair(1u, Carrier::kSlot)}) {
    auto send = cluster.ranks[0]->open_send(peer, 0).value();
    auto receive = cluster.ranks[peer]->open_receive(0, 0).value();
    send->send_published(place, 11, call(1));
    ASSERT_EQ(receive->arrival(call(1)), Arrival::kMessage);
    EXPECT_EQ(receive->front().carrier, carrier);
    EXPECT_EQ(text_of(receive->front()), "registered");
    receive->release();
  }
  cluster.ranks[0]->enter_call(call(2), cluster.ranks[0]->find_window(window->data(), 8192));
  EXPECT_EQ(cluster.ranks[2]->peer_output(0, 2, 8192), std::optional(window->data()));
  EXPECT_EQ(cluster.ranks[1]->peer_output(0, 2, 8192), std::optional<std::byte*>(nullptr));
}

// The remote transport has registered the memory with its network card. The registration belongs to the parent, which
// still uses it after the child has exited.
TEST(Mixed, AForkedChildDoesNotReleaseTheMemoryOfItsParent) {
  Cluster cluster(kTwoByTwo);
  int released = 0;
  cluster.remotes[0]->release_callback = [&](const void*, std::size_t) { ++released; };
  auto window = cluster.ranks[0]->allocate_window(8192).value();
  const pid_t child = fork();
  if (child == 0) {
    window.reset();
    _exit(released);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the child has released the registrations";
  window.reset();
  EXPECT_EQ(released, 1) << "the parent must release them";
}

TEST(MixedDeathTest, APlaceOutsideEveryWindowIsABug) {
  Cluster cluster(kTwoByTwo);
  auto send = cluster.ranks[0]->open_send(1, 0).value();
  EXPECT_DEATH(send->send_published({.window = 77, .offset = 0}, 1, call(1)), "window 77");
}

TEST(Mixed, BoardsAreSeenFromBothSides) {
  Cluster cluster(kTwoByTwo);
  const CallFailure failure{ErrorCode::kMismatch, 3, CallArgument::kCount};
  cluster.ranks[0]->enter_call(call(1, 55), {});
  cluster.ranks[0]->leave_call(call(1, 55), failure);
  cluster.ranks[0]->enter_call(call(2), {});
  for (const std::uint32_t peer : {1u, 2u, 3u}) {
    MixedTransport& other = *cluster.ranks[peer];
    EXPECT_EQ(other.peer_status(0).entered, 2u) << peer;
    EXPECT_EQ(other.peer_status(0).left, 1u) << peer;
    EXPECT_TRUE(other.peer_has_left(0, 1)) << peer;
    EXPECT_FALSE(other.peer_has_left(0, 2)) << peer;
    EXPECT_EQ(other.peer_call(0, 2), call(2)) << peer;
    EXPECT_EQ(other.peer_failure(0, 1), failure) << peer;
    EXPECT_EQ(other.peer_failure(0, 2), std::nullopt) << peer;
    EXPECT_EQ(other.peer_status(0).life, PeerLife::kLive) << peer;
  }
  cluster.ranks[0]->announce_abort();
  for (const std::uint32_t peer : {1u, 2u, 3u}) {
    EXPECT_EQ(cluster.ranks[peer]->peer_status(0).life, PeerLife::kAborted) << peer;
    EXPECT_EQ(cluster.ranks[peer]->peer_status(3).entered, 0u) << "rank 3 has a board of its own";
  }
}

TEST(Mixed, FlushAndPumpReachBoth) {
  Cluster cluster(kTwoByTwo);
  EXPECT_TRUE(cluster.ranks[0]->flush());
  cluster.remotes[0]->flushed = false;
  EXPECT_FALSE(cluster.ranks[0]->flush());
  cluster.ranks[0]->pump();
  EXPECT_EQ(cluster.remotes[0]->pumps, 1);
}

// An edge-triggered doorbell reports each event only once. If a message arrives while the rank arms its doorbell, the
// rank must not lose the wake-up for the next message, because the sender sends only one wake-up per sleep.
TEST(Mixed, WhatArrivesWhileTheRankArmsDoesNotUseUpItsOnlyPoke) {
  Cluster cluster(kTwoByTwo, Inside::kThreads, Trigger::kEdge);
  auto send = cluster.ranks[2]->open_send(0, 0).value();
  cluster.net->doorbells[0]->while_arming = [&] { send->send_slot(0, call(1)); };
  Doorbell& doorbell = cluster.ranks[0]->doorbell();
  doorbell.arm();
  send->send_slot(0, call(1));
  const auto start = std::chrono::steady_clock::now();
  doorbell.sleep(std::chrono::nanoseconds(test::patience()).count());
  EXPECT_LT(std::chrono::steady_clock::now() - start, test::patience());
}

class MixedWakes : public ::testing::TestWithParam<std::tuple<Inside, Trigger>> {
 protected:
  static Cluster cluster_of(const Machines& machines) {
    return Cluster(machines, std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

// One token travels around a ring. Every rank sleeps until it arrives. Half of the hops are inside a machine, and
// half are between machines.
TEST_P(MixedWakes, ASleepingRankIsWokenByLocalAndByRemotePeers) {
  constexpr std::uint32_t kRounds = 3000;
  Cluster cluster = cluster_of({{1, 0}, {2, 3}});
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      MixedTransport& self = *cluster.ranks[rank];
      auto send = self.open_send((rank + 1) % 4, 0).value();
      auto receive = self.open_receive((rank + 3) % 4, 0).value();
      for (std::uint32_t round = 1; round <= kRounds; ++round) {
        if (rank == 0) send->send_slot(0, call(round));
        ASSERT_TRUE(sleep_until(self.doorbell(), [&] { return receive->arrival(call(round)) == Arrival::kMessage; }))
            << "rank " << rank << " round " << round;
        receive->release();
        if (rank != 0) {
          ASSERT_TRUE(sleep_until(self.doorbell(), [&] { return send->ready(); }));
          send->send_slot(0, call(round));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Every rank sends to every other rank as fast as the credits allow, and sleeps when it cannot make progress. So
// messages, credits and wake-ups of both transports arrive in every order.
TEST_P(MixedWakes, NoWakeIsLostInACrowd) {
  constexpr std::uint32_t kMessages = 2000;
  Cluster cluster = cluster_of(kTwoByTwo);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      MixedTransport& self = *cluster.ranks[rank];
      std::vector<std::unique_ptr<SendConnection>> sends;
      std::vector<std::unique_ptr<ReceiveConnection>> receives;
      for (std::uint32_t peer = 0; peer < 4; ++peer) {
        if (peer == rank) continue;
        sends.push_back(self.open_send(peer, 0).value());
        receives.push_back(self.open_receive(peer, 0).value());
      }
      std::vector<std::uint32_t> sent(3);
      std::vector<std::uint32_t> received(3);
      const auto step = [&] {
        bool moved = false;
        for (std::size_t i = 0; i < 3; ++i) {
          if (sent[i] < kMessages && sends[i]->ready()) {
            send_text(*sends[i], std::to_string(sent[i]++), call(1));
            moved = true;
          }
          if (received[i] < kMessages && receives[i]->arrival(call(1)) == Arrival::kMessage) {
            EXPECT_EQ(text_of(receives[i]->front()), std::to_string(received[i]++));
            receives[i]->release();
            moved = true;
          }
        }
        return moved;
      };
      const auto done = [&] { return sent == std::vector(3, kMessages) && received == sent; };
      while (!done()) {
        ASSERT_TRUE(sleep_until(self.doorbell(), step)) << "rank " << rank;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(MixedWakes, AnyThreadWakesItsOwnRank) {
  Cluster cluster = cluster_of(kTwoByTwo);
  Doorbell& doorbell = cluster.ranks[0]->doorbell();
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> rung = false;
    std::thread ringer([&] {
      rung = true;
      doorbell.ring();
    });
    EXPECT_TRUE(sleep_until(doorbell, [&] { return rung.load(); }));
    ringer.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Inside, MixedWakes,
                         ::testing::Combine(::testing::Values(Inside::kThreads, Inside::kSockets),
                                            ::testing::Values(Trigger::kLevel, Trigger::kEdge)),
                         [](const auto& instance) {
                           const bool threads = std::get<0>(instance.param) == Inside::kThreads;
                           const bool level = std::get<1>(instance.param) == Trigger::kLevel;
                           return std::string(threads ? "Threads" : "Sockets") + (level ? "Level" : "Edge");
                         });

}  // namespace
}  // namespace tutti
