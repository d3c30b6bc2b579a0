// The verbs transport over a real RDMA stack: messages, credits, sleeping, several queue pairs and ports, memory that
// comes back at the same address. Runs in a guest of scripts/rdma-vm.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/rdma/verbs_support.h"

namespace tutti {
namespace {

TEST_F(Verbs, MessagesArriveWholeAndInOrder) {
  open();
  exchange(0, 6);
  exchange(3, 2);
}

// Its port has an address of IPv6 only.
TEST_F(Verbs, APeerWithoutACommonPortGoesByTcp) {
  open(1, 17, 6, "verbs2;far0,1,2,1000,3,0,20010db8000000000000000000000001,0");
  exchange(0, 1);
  EXPECT_TRUE(ranks[0]->peer_way(1).empty());
}

// The i-th port of one rank speaks to the i-th of the other, whatever is missing before it.
TEST_F(Verbs, APortThatIsMissingLeavesItsRailEmpty) {
  if (cables() < 2 || !has_cables()) GTEST_SKIP() << "needs two cables: scripts/rdma-vm run --cables 2";
  missing_of_one = "right0";
  open();
  exchange(0, 1);
  const std::string way = ranks[0]->peer_way(1);
  EXPECT_EQ(way.find("left0"), std::string::npos) << way;
  EXPECT_NE(way.find("rxe_left1 port 1, queue pair "), std::string::npos) << way;
  EXPECT_NE(way.find(" of rxe_right1 port 1 at rank 1"), std::string::npos) << way;
}

TEST_F(Verbs, SeveralQueuePairsAndPortsShareAMessage) {
  open(3);
  exchange(0, 4);
}

TEST_F(Verbs, BothWaysAtOnce) {
  open();
  auto there = send(0), back = send(1);
  auto here = receive(1), away = receive(0);
  int echoes = 0;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(eventually([&] { return there->ready(); }));
    there->send_from(reinterpret_cast<const std::byte*>(&i), sizeof(i), call(1));
    ASSERT_EQ(await(*here, call(1)), Arrival::kMessage);
    ASSERT_TRUE(eventually([&] { return back->ready(); }));
    std::memcpy(back->slot(), here->front().data, sizeof(i));
    here->release();
    back->send_slot(sizeof(i), call(1));
    ASSERT_EQ(await(*away, call(1)), Arrival::kMessage);
    int got = -1;
    std::memcpy(&got, away->front().data, sizeof(got));
    away->release();
    echoes += got == i;
  }
  EXPECT_EQ(echoes, 200);
}

TEST_F(Verbs, CreditsBoundWhatIsOnItsWay) {
  open();
  auto sender = send(0);
  auto receiver = receive(1);
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
    sender->send_from(nullptr, 0, call(1));
  }
  EXPECT_FALSE(eventually([&] { return sender->ready(); }, 300)) << "no slot is free";
  ASSERT_EQ(await(*receiver, call(1)), Arrival::kMessage);
  // All have arrived before the first is freed, so that the peer is known to have no credit.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ranks[1]->pump();
  receiver->release();
  EXPECT_TRUE(eventually([&] { return sender->ready(); })) << "one is, and the sender is told though it is but one";
}

TEST_F(Verbs, OtherCallsAreToldApart) {
  open();
  auto sender = send(0);
  auto receiver = receive(1);
  for (const std::uint64_t sequence : {1, 2, 4}) {
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
    sender->send_from(nullptr, 0, call(sequence));
  }
  ASSERT_EQ(await(*receiver, call(2)), Arrival::kMessage) << "that of call 1 is dropped";
  receiver->release();
  EXPECT_FALSE(eventually([&] { return receiver->arrival(call(3)) != Arrival::kNothing; }, 300))
      << "given up by the peer";
  EXPECT_EQ(await(*receiver, call(4, 11)), Arrival::kMismatch);
  EXPECT_EQ(receiver->mismatched_tag(), call(4));
}

TEST_F(Verbs, AnArrivalEndsASleep) {
  open();
  auto sender = send(0);
  auto receiver = receive(1);
  ASSERT_TRUE(eventually([&] { return sender->ready(); }));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    sender->send_from(nullptr, 0, call(1));
  });
  const auto begin = std::chrono::steady_clock::now();
  Arrival arrival = Arrival::kNothing;
  while (arrival == Arrival::kNothing && std::chrono::steady_clock::now() - begin < std::chrono::seconds(30)) {
    ranks[1]->doorbell().arm();
    arrival = receiver->arrival(call(1));
    if (arrival == Arrival::kNothing) ranks[1]->doorbell().sleep(30'000'000'000);
  }
  later.join();
  EXPECT_EQ(arrival, Arrival::kMessage);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "it did not sleep to its end";
}

// Memory that was sent from is freed, and other memory comes at the same address: the new bytes are sent.
TEST_F(Verbs, MemoryThatComesBackIsNotTakenForTheOld) {
  open();
  constexpr std::size_t kBytes = 128 * 1024;
  auto sender = send(0);
  auto receiver = receive(1);
  void* place = nullptr;
  for (int i = 0; i < 20; ++i) {
    void* const memory = mmap(place, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED : 0), -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    place = memory;
    std::memset(memory, 'a' + i, kBytes);
    const auto* const data = static_cast<const std::byte*>(memory);
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
    sender->send_pinned({data, kBytes}, data, kBytes, call(static_cast<std::uint64_t>(i) + 1));
    ASSERT_EQ(await(*receiver, call(static_cast<std::uint64_t>(i) + 1)), Arrival::kMessage);
    const Message message = receiver->front();
    EXPECT_EQ(static_cast<char>(message.data[0]), 'a' + i);
    EXPECT_EQ(static_cast<char>(message.data[kBytes - 1]), 'a' + i);
    receiver->release();
    ASSERT_TRUE(eventually([&] { return sender->drained(); }));
    munmap(memory, kBytes);
  }
}

// A call's output, shown to the peer.
class VerbsOutputs : public Verbs {
 protected:
  static constexpr std::size_t kPiece = 128 * 1024;
  static constexpr std::size_t kPieces = 6;

  void connect(std::uint32_t queue_pairs = 1) {
    open(queue_pairs);
    sender = send(0);
    receiver = receive(1);
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
  }
  bool aims(const CallTag& tag, std::size_t offset, std::size_t bytes = kPiece * kPieces, int ms = kPatienceMs) {
    return eventually([&] { return sender->ready() && sender->aim(tag, bytes, offset); }, ms);
  }
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
  std::vector<std::byte> output = std::vector<std::byte>(kPiece * kPieces);
};

TEST_F(VerbsOutputs, AreWrittenToWhereMessagesAreWanted) {
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    const auto data = pattern(output.size(), queue_pairs);
    std::fill(output.begin(), output.end(), std::byte{0});
    ASSERT_TRUE(receiver->show_output(call(1), output));
    // Backwards, by all ways of sending, and two in between that are not aimed or too short for it.
    for (std::size_t i = kPieces; i-- > 0;) {
      const std::byte* const piece = data.data() + i * kPiece;
      const bool aimed = i != 2;
      const std::size_t bytes = i == 4 ? 1000 : kPiece;
      ASSERT_TRUE(aimed ? aims(call(1), i * kPiece) : eventually([&] { return sender->ready(); }));
      if (i % 2 == 0) {
        sender->send_pinned(data, piece, bytes, call(1));
      } else {
        sender->send_from(piece, bytes, call(1));
      }
      ASSERT_EQ(await(*receiver, call(1)), Arrival::kMessage);
      const Message message = receiver->front();
      EXPECT_EQ(message.bytes, bytes);
      EXPECT_EQ(message.carrier, aimed && bytes == kPiece ? Carrier::kDelivered : Carrier::kSlot) << i;
      const std::byte* const found = message.carrier == Carrier::kSlot ? message.data : output.data() + i * kPiece;
      EXPECT_TRUE(std::equal(piece, piece + bytes, found)) << i;
      receiver->release();
    }
    EXPECT_EQ(output[2 * kPiece], std::byte{0}) << "it came by its slot";
    receiver->hide_output(false);
    EXPECT_TRUE(eventually([&] { return sender->drained(); }));
    sender.reset();
    receiver.reset();
    ranks.clear();
  }
}

TEST_F(VerbsOutputs, AreThoseOfOneCall) {
  connect();
  EXPECT_FALSE(sender->aim(call(1), output.size(), 0)) << "nothing is shown";
  ASSERT_TRUE(receiver->show_output(call(1), output));
  EXPECT_FALSE(receiver->show_output(call(1), output)) << "once is enough";
  ASSERT_TRUE(aims(call(1), 0));
  EXPECT_FALSE(sender->aim(call(2), output.size(), 0)) << "another call";
  EXPECT_FALSE(sender->aim(call(1, 11), output.size(), 0)) << "the same, as the peer does not mean it";
  EXPECT_FALSE(sender->aim(call(1), output.size() - 1, 0)) << "of another length";
  EXPECT_FALSE(sender->aim(call(1), output.size(), output.size() + 1)) << "behind its end";
}

TEST_F(VerbsOutputs, AreShownNoSoonerThanThePeerHasSeenThose) {
  connect();
  std::uint64_t shown = 0;
  while (shown < 100 && receiver->show_output(call(shown + 1), output)) ++shown;
  EXPECT_EQ(shown, 4u);
  ASSERT_TRUE(aims(call(shown), 0)) << "the last is the one that counts";
  sender->send_from(nullptr, 0, call(shown));
  ASSERT_EQ(await(*receiver, call(shown)), Arrival::kMessage);
  receiver->release();
  EXPECT_TRUE(receiver->show_output(call(shown + 1), output)) << "its header says that all were seen";
}

TEST_F(VerbsOutputs, AreNotWrittenToAfterTheCallWasGivenUp) {
  connect();
  ASSERT_TRUE(receiver->show_output(call(1), output));
  ASSERT_TRUE(aims(call(1), 0));
  receiver->hide_output(true);
  const auto data = pattern(kPiece, 9);
  sender->send_pinned(data, data.data(), data.size(), call(1));
  EXPECT_TRUE(eventually([&] { return ranks[0]->peer_status(1).life == PeerLife::kUnreachable; }));
  EXPECT_NE(ranks[0]->peer_trouble(1).find("remote access error"), std::string::npos) << ranks[0]->peer_trouble(1);
  EXPECT_EQ(std::count(output.begin(), output.end(), std::byte{0}), static_cast<std::ptrdiff_t>(output.size()));
}

TEST_F(VerbsOutputs, AreRecalledBehindWhatIsUnderWay) {
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    EXPECT_TRUE(receiver->recall_output()) << "nothing is shown";
    ASSERT_TRUE(receiver->show_output(call(1), output));
    ASSERT_TRUE(aims(call(1), 0));
    const auto data = pattern(kPiece, 9);
    sender->send_pinned(data, data.data(), data.size(), call(1));
    static_cast<void>(receiver->recall_output());
    ASSERT_TRUE(eventually([&] { return receiver->recall_output(); }));
    // Answered: what was written is there, though nobody has looked for its message.
    EXPECT_TRUE(std::equal(data.begin(), data.end(), output.begin()));
    receiver->hide_output(true);
    EXPECT_FALSE(sender->aim(call(1), output.size(), kPiece)) << "it is not used any more";
    EXPECT_EQ(receiver->arrival(call(2)), Arrival::kNothing) << "that message's call was given up";
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
    sender->send_pinned(data, data.data(), data.size(), call(2));
    EXPECT_EQ(await(*receiver, call(2)), Arrival::kMessage);
    EXPECT_EQ(ranks[0]->peer_status(1).life, PeerLife::kLive);
    sender.reset();
    receiver.reset();
    ranks.clear();
    std::fill(output.begin(), output.end(), std::byte{0});
  }
}

// A call that was given up, whose peer had seen its output and meant another call: nothing is lost by it.
TEST_F(VerbsOutputs, OfACallGivenUpMayBeShownAgain) {
  connect();
  for (std::uint64_t sequence = 1; sequence <= 6; ++sequence) {
    ASSERT_TRUE(receiver->show_output(call(sequence), output)) << sequence;
    ASSERT_TRUE(aims(call(sequence), kPiece)) << sequence;
    const auto data = pattern(kPiece, static_cast<unsigned>(sequence));
    const bool gives_up = sequence % 2 == 1;
    // Seen, and not used.
    if (gives_up) static_cast<void>(sender->aim(call(sequence, 11), output.size(), kPiece));
    sender->send_pinned(data, data.data(), gives_up ? 8 : kPiece, call(sequence, gives_up ? 11 : 10));
    ASSERT_EQ(await(*receiver, call(sequence)), gives_up ? Arrival::kMismatch : Arrival::kMessage);
    if (!gives_up) {
      EXPECT_EQ(receiver->front().carrier, Carrier::kDelivered);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), output.data() + kPiece));
    }
    receiver->release();
    receiver->hide_output(gives_up);
    ASSERT_TRUE(eventually([&] { return sender->drained(); }));
  }
}

// As with memory that is sent from: the card knows the pages, not the address.
TEST_F(VerbsOutputs, InMemoryThatComesBackAreFilled) {
  connect();
  void* place = nullptr;
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
    void* const memory = mmap(place, kPiece, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED : 0), -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    place = memory;
    const std::span<std::byte> fresh(static_cast<std::byte*>(memory), kPiece);
    ASSERT_TRUE(receiver->show_output(call(sequence), fresh));
    ASSERT_TRUE(aims(call(sequence), 0, kPiece));
    const auto data = pattern(kPiece, static_cast<unsigned>(sequence));
    sender->send_from(data.data(), data.size(), call(sequence));
    ASSERT_EQ(await(*receiver, call(sequence)), Arrival::kMessage);
    EXPECT_EQ(receiver->front().carrier, Carrier::kDelivered);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), fresh.begin())) << sequence;
    receiver->release();
    receiver->hide_output(false);
    munmap(memory, kPiece);
  }
}

TEST_F(VerbsOutputs, AreNotShownWhereTheUserForbidsIt) {
  write_outputs = false;
  connect();
  EXPECT_GT(receiver->least_aimed(), std::uint64_t{1} << 60);
}

TEST_F(Verbs, WhatWasSentArrivesThoughTheSenderLeaves) {
  open();
  auto receiver = receive(1);
  {
    auto sender = send(0);
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
    const auto data = pattern(kSlotBytes, 5);
    sender->send_from(data.data(), data.size(), call(1));
  }
  std::thread leaves([&] { ranks[0].reset(); });
  leaves.join();
  Arrival arrival = Arrival::kNothing;
  for (int i = 0; i < 1000 && arrival == Arrival::kNothing; ++i) {
    arrival = receiver->arrival(call(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(arrival, Arrival::kMessage);
  const auto expected = pattern(kSlotBytes, 5);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), receiver->front().data));
  EXPECT_EQ(ranks[1]->peer_status(0).life, PeerLife::kLeft);
  ranks.erase(ranks.begin());
}

}  // namespace
}  // namespace tutti
