// Tests of TcpTransport's messages: order, integrity, caller buffers, flow control and waiting. Peers that end, and
// unknown processes, are tested in tcp_faults_test.cc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tcp_support.h"

namespace tutti::tcp_test {
namespace {

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

const std::vector<std::size_t> kSizes = {0, 1, 7, 8, 4095, 4096, 4097, 16336, 16384, 65536, 100001, kSlotBytes};

// Sends a message of every size on each lane, several times, with a flush after each round. Every third size is sent
// from a slot.
void send_all(TcpTransport& rank, std::uint32_t to, std::uint16_t lanes, int rounds) {
  std::vector<std::unique_ptr<SendConnection>> connections;
  for (std::uint16_t lane = 0; lane < lanes; ++lane) {
    connections.push_back(rank.open_send(to, lane).value());
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (std::uint16_t lane = 0; lane < lanes; ++lane) {
        SendConnection& connection = *connections[lane];
        ASSERT_TRUE(eventually([&] { return connection.ready(); }));
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
      rank.flush();
    }
  }
  ASSERT_TRUE(eventually([&] { return rank.flush(); }));
}

// Offers a caller buffer for every second message. For every fifth of them the buffer has a wrong length.
void receive_all(TcpTransport& rank, std::uint32_t from, std::uint16_t lanes, int rounds) {
  std::vector<std::unique_ptr<ReceiveConnection>> connections;
  for (std::uint16_t lane = 0; lane < lanes; ++lane) {
    connections.push_back(rank.open_receive(from, lane).value());
  }
  std::vector<std::byte> place(kSlotBytes + 1);
  int number = 0;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (std::uint16_t lane = 0; lane < lanes; ++lane, ++number) {
        std::span<std::byte> where;
        if (number % 2 == 0) where = {place.data(), kSizes[i] + (number % 5 == 0 ? 1 : 0)};
        ASSERT_EQ(await(*connections[lane], call(1), where, 20000), Arrival::kMessage);
        const Message got = connections[lane]->front();
        const auto expected = pattern(kSizes[i], static_cast<unsigned>(round * 1000 + i * 10 + lane));
        ASSERT_EQ(got.bytes, expected.size());
        const bool fits = where.size() == got.bytes && got.bytes > 0;
        ASSERT_EQ(got.carrier, fits ? Carrier::kDelivered : Carrier::kSlot);
        const std::byte* data = fits ? place.data() : got.data;
        ASSERT_TRUE(expected.empty() || std::memcmp(data, expected.data(), expected.size()) == 0)
            << "round " << round << " size " << kSizes[i] << " lane " << lane;
        connections[lane]->release();
      }
    }
  }
}

// Two communicators of three ranks. All ranks are threads of one process and share its endpoint.
TEST(TcpEndpointShared, ServesAllRanksAndCommunicatorsOfAProcess) {
  constexpr std::uint32_t kRanks = 3;
  const auto shared = endpoint();
  std::vector<std::thread> ranks;
  for (std::uint32_t i = 0; i < 2 * kRanks; ++i) {
    ranks.emplace_back([&, rank = i % kRanks, communicator = i / kRanks] {
      const std::vector<std::string> addresses(kRanks, shared->address());
      auto transport =
          TcpTransport::create({.rank = rank, .ranks = kRanks, .communicator = communicator}, shared, addresses)
              .value();
      auto send = transport->open_send((rank + 1) % kRanks, 0).value();
      auto receive = transport->open_receive((rank + kRanks - 1) % kRanks, 0).value();
      for (std::uint64_t sequence = 1; sequence <= 200; ++sequence) {
        const std::uint64_t value = communicator * 1000000 + rank * 1000 + sequence;
        send->send_from(reinterpret_cast<const std::byte*>(&value), sizeof(value), call(sequence));
        std::uint64_t got = 0;
        ASSERT_TRUE(eventually([&] {
          transport->flush();
          return receive->arrival(call(sequence), {reinterpret_cast<std::byte*>(&got), sizeof(got)}) ==
                 Arrival::kMessage;
        }));
        receive->release();
        ASSERT_EQ(got, communicator * 1000000 + (rank + kRanks - 1) % kRanks * 1000 + sequence);
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(shared->refusals().count, 0u) << shared->refusals().last;
}

class TcpMessages : public testing::TestWithParam<const char*> {};

TEST_P(TcpMessages, ArriveWholeAndInOrderOnAllLanes) {
  TestJob job(2, GetParam());
  std::thread sender([&] { send_all(*job.ranks[0], 1, 3, 10); });
  receive_all(*job.ranks[1], 0, 3, 10);
  sender.join();
}

INSTANTIATE_TEST_SUITE_P(Families, TcpMessages, testing::Values("127.0.0.1", "::1"));

TEST(TcpPlace, IsNotTouchedOnceAnotherCallOrPlaceIsNamed) {
  PlaintextJob job;
  RawPeer peer(job.addresses[1]);
  peer.write(peer.preamble(job.options(1), 0));
  auto receive = job.receive(0, 1);
  const std::size_t bytes = 100000;
  const auto first = pattern(bytes, 1);
  const auto second = pattern(bytes, 2);
  std::vector<std::byte> old_place(bytes, std::byte{0});
  std::vector<std::byte> new_place(bytes, std::byte{0});
  peer.write(message(bytes, call(1)));
  peer.write(first.data(), bytes / 2);
  ASSERT_EQ(await(*receive, call(1), old_place, 200), Arrival::kNothing);
  ASSERT_EQ(std::memcmp(old_place.data(), first.data(), bytes / 2), 0) << "the first half of the message has arrived";
  const std::vector<std::byte> before = old_place;
  peer.write(first.data() + bytes / 2, bytes - bytes / 2);
  peer.write(message(bytes, call(2)));
  peer.write(second.data(), bytes);
  ASSERT_EQ(await(*receive, call(2), new_place), Arrival::kMessage);
  EXPECT_EQ(receive->front().carrier, Carrier::kDelivered);
  EXPECT_EQ(new_place, second);
  EXPECT_EQ(old_place, before) << "the rest of the message of call 1 must not be stored here";
}

TEST(TcpPlace, MayChangeWithinACallAndTheMessageStaysWhole) {
  PlaintextJob job;
  RawPeer peer(job.addresses[1]);
  peer.write(peer.preamble(job.options(1), 0));
  auto receive = job.receive(0, 1);
  const auto data = pattern(100000, 1);
  std::vector<std::byte> place(data.size());
  peer.write(message(data.size(), call(1)));
  peer.write(data.data(), 50000);
  ASSERT_EQ(await(*receive, call(1), place, 200), Arrival::kNothing);
  peer.write(data.data() + 50000, 50000);
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage) << "now without a caller buffer";
  const Message got = receive->front();
  ASSERT_EQ(got.carrier, Carrier::kSlot);
  EXPECT_EQ(std::memcmp(got.data, data.data(), data.size()), 0);
}

TEST(TcpReceive, DropsStaleMessagesKeepsFutureOnesAndNamesMismatches) {
  TestJob job;
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const auto data = pattern(50000, 3);
  send->send_from(data.data(), 10, call(1));
  send->send_from(data.data(), data.size(), call(1));
  send->send_from(data.data(), 20, call(3));
  EXPECT_TRUE(job.flushed(0));
  EXPECT_EQ(await(*receive, call(2), {}, 100), Arrival::kNothing)
      << "call 1 is over, and call 3 has not begun on this rank";
  ASSERT_EQ(await(*receive, call(3)), Arrival::kMessage);
  EXPECT_EQ(receive->front().bytes, 20u);
  receive->release();
  send->send_from(data.data(), 30, call(4, 11));
  job.ranks[0]->flush();
  ASSERT_EQ(await(*receive, call(4, 10)), Arrival::kMismatch);
  EXPECT_EQ(receive->mismatched_tag(), call(4, 11));
  EXPECT_EQ(job.ranks[1]->peer_call(0, 4), call(4, 11)) << "a message shows which call the peer has entered";
  EXPECT_TRUE(job.ranks[1]->peer_has_left(0, 3)) << "a peer in call 4 has left call 3";
}

TEST(TcpSend, StopsAtItsSlotsWhenTheReceiverDoesNotRead) {
  TestJob job;
  auto send = job.send(0, 1);
  auto other_lane = job.send(0, 1, 1);
  const auto data = pattern(kSlotBytes, 4);
  std::size_t sent = 0;
  const auto fill = [&] {
    while (send->ready() && sent < 4096) {
      send->send_from(data.data(), data.size(), call(1));
      ++sent;
    }
  };
  // The kernel's buffers grow while data flows. So the connection counts as full only if it stays full.
  fill();
  EXPECT_FALSE(eventually([&] { return fill(), sent >= 4096; }, 300));
  ASSERT_LT(sent, 512u) << "64 MiB were sent without reaching the limit";
  EXPECT_FALSE(send->ready());
  EXPECT_FALSE(job.ranks[0]->flush());
  EXPECT_FALSE(send->drained());
  auto receive_other = job.receive(0, 1, 1);
  other_lane->send_from(data.data(), 9, call(1));
  const auto arrives = [&] {
    job.ranks[0]->flush();
    return receive_other->arrival(call(1)) == Arrival::kMessage;
  };
  ASSERT_TRUE(eventually(arrives)) << "a full lane must not block another lane";
  auto receive = job.receive(0, 1);
  for (std::size_t i = 0; i < sent; ++i) {
    ASSERT_TRUE(eventually([&] {
      job.ranks[0]->flush();
      return receive->arrival(call(1)) == Arrival::kMessage;
    })) << i;
    ASSERT_EQ(receive->front().bytes, data.size());
    ASSERT_EQ(std::memcmp(receive->front().data, data.data(), data.size()), 0);
    receive->release();
  }
  EXPECT_TRUE(send->ready());
  EXPECT_TRUE(eventually([&] { return send->drained(); }));
}

TEST(TcpSend, HoldsSmallMessagesUntilFlush) {
  TestJob job;
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const std::uint64_t value = 42;
  for (int i = 0; i < 3; ++i) send->send_from(reinterpret_cast<const std::byte*>(&value), sizeof(value), call(1));
  EXPECT_EQ(await(*receive, call(1), {}, 50), Arrival::kNothing);
  EXPECT_TRUE(job.flushed(0));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
    receive->release();
  }
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
}

// machines_test.sh compares the numbers with those of the kernel while segments are lost.
TEST(TcpRetransmissions, AreCountedForPeersToWhichThereWasAConnection) {
  TestJob job(3);
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  const std::uint64_t value = 42;
  send->send_from(reinterpret_cast<const std::byte*>(&value), sizeof(value), call(1));
  EXPECT_TRUE(job.flushed(0));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  for (const std::uint32_t rank : {0U, 1U}) {
    const auto counts = job.ranks[rank]->count_retransmissions();
    ASSERT_EQ(counts.size(), 3U);
    EXPECT_TRUE(counts[1 - rank].has_value());
    EXPECT_FALSE(counts[rank].has_value());
    EXPECT_FALSE(counts[2].has_value());
  }
  job.ranks[0]->announce_leave();
  EXPECT_TRUE(job.ranks[0]->count_retransmissions()[1].has_value()) << "a closed connection counts, too";
}

TEST(TcpWindows, ArePlainMemory) {
  TestJob job;
  auto window = job.ranks[0]->allocate_window(10000).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window->data()) % 4096, 0u);
  EXPECT_EQ(job.ranks[0]->find_window(window->data(), 8).window, 0u);
  EXPECT_EQ(job.ranks[0]->peer_output(1, 1, 8), std::optional<std::byte*>(nullptr));
  std::vector<std::byte> own(100);
  auto adopted = job.ranks[0]->adopt_window(own.data(), own.size()).value();
  EXPECT_EQ(adopted->data(), own.data());
}

TEST(TcpDoorbell, LosesNoWake) {
  TestJob job;
  std::thread echo([&] {
    auto receive = job.receive(0, 1);
    auto send = job.send(1, 0);
    for (std::uint64_t i = 1; i <= 3000; ++i) {
      Idle idle;
      AdaptiveWaiter waiter({.spins = 0, .yields = 0});
      while (receive->arrival(call(i)) == Arrival::kNothing) {
        waiter.pause(idle, job.ranks[1]->doorbell(), 10'000'000'000);
        job.ranks[1]->flush();
      }
      receive->release();
      send->send_from(nullptr, 0, call(i));
      job.ranks[1]->flush();
    }
  });
  auto send = job.send(0, 1);
  auto receive = job.receive(1, 0);
  std::int64_t longest_ns = 0;
  SteadyClock clock;
  for (std::uint64_t i = 1; i <= 3000; ++i) {
    const std::int64_t start_ns = clock.now_ns();
    send->send_from(nullptr, 0, call(i));
    job.ranks[0]->flush();
    while (receive->arrival(call(i)) == Arrival::kNothing) {
      job.ranks[0]->doorbell().arm();
      job.ranks[0]->flush();  // continues a handshake that waits for an event which arm() has consumed
      if (receive->arrival(call(i)) != Arrival::kNothing) {
        job.ranks[0]->doorbell().disarm();
        break;
      }
      job.ranks[0]->doorbell().sleep(10'000'000'000);
      job.ranks[0]->flush();
    }
    receive->release();
    longest_ns = std::max(longest_ns, clock.now_ns() - start_ns);
  }
  echo.join();
  EXPECT_LT(longest_ns, 5'000'000'000) << "a sleep reached its timeout, so a wake-up was lost";
}

TEST(TcpDoorbell, RingsFromOtherThreadsAndWatchesMoreSources) {
  TestJob job;
  EpollDoorbell& bell = job.ranks[0]->doorbell();
  SteadyClock clock;
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> said = false;
    std::thread other([&] {
      said = true;
      bell.ring();
    });
    const std::int64_t start_ns = clock.now_ns();
    while (!said) {
      bell.arm();
      if (said) {
        bell.disarm();
        break;
      }
      bell.sleep(10'000'000'000);
    }
    EXPECT_LT(clock.now_ns() - start_ns, 5'000'000'000);
    other.join();
  }
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  ASSERT_TRUE(job.ranks[0]->doorbell().add_wait_source(ends[0]).ok());
  bell.arm();
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  const std::int64_t start_ns = clock.now_ns();
  bell.sleep(10'000'000'000);
  EXPECT_LT(clock.now_ns() - start_ns, 5'000'000'000);
  close(ends[0]);
  close(ends[1]);
}

TEST(TcpFork, AChildThatDestroysItsCopyDoesNotSpeakForTheRank) {
  auto job = std::make_unique<TestJob>();
  auto send = job->send(0, 1);
  auto receive = job->receive(0, 1);
  const std::byte byte{7};
  send->send_from(&byte, 1, call(1));  // not flushed; the child must not send it either
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
  EXPECT_TRUE(job->flushed(0));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  EXPECT_EQ(await(*receive, call(1), {}, 50), Arrival::kNothing) << "the message must arrive only once";
  for (int rank = 0; rank < 2; ++rank) {
    job->ranks[rank]->pump();
    EXPECT_EQ(job->ranks[rank]->peer_status(1 - rank).life, PeerLife::kLive);
  }
}

}  // namespace
}  // namespace tutti::tcp_test
