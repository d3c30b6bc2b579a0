// Tests of the verbs transport over a real RDMA stack: messages, credits, sleeping, several queue pairs and ports,
// and new memory at the address of freed memory. Runs in a guest of scripts/rdma-vm.
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

// The peer's port has only an IPv6 address.
TEST_F(Verbs, APeerWithoutACommonPortGoesByTcp) {
  open(1, 17, 6, "verbs2;far0,1,2,1000,3,0,20010db8000000000000000000000001,0");
  exchange(0, 1);
  EXPECT_TRUE(ranks[0]->peer_path(1).empty());
}

// The i-th port of one rank is connected to the i-th port of the other, even if a port before it is missing.
TEST_F(Verbs, APortThatIsMissingLeavesItsRailEmpty) {
  if (cables() < 2 || !has_cables()) GTEST_SKIP() << "needs two cables: scripts/rdma-vm run --cables 2";
  missing_of_one = "right0";
  open();
  exchange(0, 1);
  const std::string path = ranks[0]->peer_path(1);
  EXPECT_EQ(path.find("left0"), std::string::npos) << path;
  EXPECT_NE(path.find("rxe_left1 port 1, queue pair "), std::string::npos) << path;
  EXPECT_NE(path.find(" of rxe_right1 port 1 at rank 1"), std::string::npos) << path;
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
  // Wait until all messages have arrived before the first slot is released. So the peer has certainly used all of
  // its credits.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // if that is too short, the test is only weaker
  ranks[1]->pump();
  receiver->release();
  EXPECT_TRUE(eventually([&] { return sender->ready(); })) << "a released slot must be reported even if it is only one";
}

TEST_F(Verbs, OtherCallsAreToldApart) {
  open();
  auto sender = send(0);
  auto receiver = receive(1);
  for (const std::uint64_t sequence : {1, 2, 4}) {
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
    sender->send_from(nullptr, 0, call(sequence));
  }
  ASSERT_EQ(await(*receiver, call(2)), Arrival::kMessage) << "the message of call 1 must be dropped";
  receiver->release();
  EXPECT_FALSE(eventually([&] { return receiver->arrival(call(3)) != Arrival::kNothing; }, 300))
      << "the peer has abandoned call 3";
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
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20))
      << "the sleep must end when the message arrives";
}

// Memory that was sent is freed, and new memory is mapped at the same address. The new bytes must be sent.
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

// A send ends when its memory may be changed again. It must not need a further packet for that, because the receiver
// may have left by then.
TEST_F(Verbs, EveryMessageFromThatMemoryTellsThatItIsDone) {
  open();
  constexpr std::size_t kMessages = 16;
  auto sender = send(0);
  auto receiver = receive(1);
  const auto data = pattern(kMessages * kSlotBytes, 3);
  for (const std::size_t messages : {kMessages, kMessages / 2 + 1}) {  // all of the memory, and a part of it
    const std::uint64_t told_before = ranks[0]->send_completions();
    std::size_t sent = 0;
    std::size_t received = 0;
    ASSERT_TRUE(eventually([&] {
      while (sent < messages && sender->ready()) {
        sender->send_pinned(data, data.data() + sent++ * kSlotBytes, kSlotBytes, call(1));
      }
      while (receiver->arrival(call(1)) == Arrival::kMessage) {
        const std::byte* const expected = data.data() + received++ * kSlotBytes;
        EXPECT_TRUE(std::equal(expected, expected + kSlotBytes, receiver->front().data)) << received;
        receiver->release();
      }
      return received == messages;
    })) << sent
        << " sent, " << received << " received";
    EXPECT_TRUE(eventually([&] { return sender->handed_over(); }));
    EXPECT_GE(ranks[0]->send_completions() - told_before, messages);
  }
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
  ASSERT_TRUE(test::eventually([&] { return (arrival = receiver->arrival(call(1))) != Arrival::kNothing; }));
  ASSERT_EQ(arrival, Arrival::kMessage);
  const auto expected = pattern(kSlotBytes, 5);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), receiver->front().data));
  EXPECT_EQ(ranks[1]->peer_status(0).life, PeerLife::kLeft);
  ranks.erase(ranks.begin());
}

}  // namespace
}  // namespace tutti
