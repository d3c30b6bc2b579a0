// Tests of the UCX transport when a peer violates the protocol or its process ends.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "ucx_raw.h"

namespace tutti::ucx_test {
namespace {

class UcxFaults : public RawRank {};

TEST_F(UcxFaults, TheRawPeerIsSoundWhereItWantsToBe) {
  meet();
  raw_->send(raw_->valid_header(1, 20), 20);
  EXPECT_EQ(await(100), Arrival::kNothing) << "message 1 must wait for message 0";
  raw_->send(raw_->valid_header(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  EXPECT_EQ(receive_->front().bytes, 10u);
  receive_->release();
  ASSERT_EQ(await(), Arrival::kMessage);
  EXPECT_EQ(receive_->front().bytes, 20u);
  receive_->release();
}

TEST_F(UcxFaults, WhatNoSoundPeerSendsIsCorrupt) {
  using Change = void (*)(UcxHeader&);
  const Change changes[] = {
      [](UcxHeader& header) { header.number = kSlots; },            // more than the credits allow
      [](UcxHeader& header) { header.number = ~0u; },               // a number that was released long ago
      [](UcxHeader& header) { header.bytes = 11; },                 // differs from the real payload size
      [](UcxHeader& header) { header.tag.sequence = 0; },           // not a valid call
      [](UcxHeader& header) { header.kind = UcxMessageType{77}; },  // an unknown message type
  };
  for (const Change change : changes) {
    receive_.reset();
    ranks_[0].reset();
    ranks_[1].reset();
    endpoints_.clear();
    addresses_.clear();
    SetUp();
    meet();
    UcxHeader header = raw_->valid_header(0, 10);
    change(header);
    raw_->send(header, 10);
    EXPECT_EQ(await(), Arrival::kCorrupt) << &change - changes;
  }
}

TEST_F(UcxFaults, AMessageLongerThanASlotIsCorrupt) {
  meet();
  raw_->send(raw_->valid_header(0, 2 * kSlotBytes), 2 * kSlotBytes);
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxFaults, AMessageTwiceIsCorruptAndTheFirstIsGood) {
  meet();
  raw_->send(raw_->valid_header(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  raw_->send(raw_->valid_header(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  receive_->release();
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxFaults, StrangersAreRefusedAndCounted) {
  meet();
  const auto refused = [&](const char* count) {
    return eventually([&] { return ranks_[1]->troubles().find(count) != std::string::npos; });
  };
  UcxHeader header = raw_->valid_header(0, 10);
  header.key ^= 1;
  raw_->send(header, 10);
  EXPECT_TRUE(refused("refused 1 ")) << ranks_[1]->troubles();
  header = raw_->valid_header(0, 10);
  header.sender = 2;
  raw_->send(header, 10);
  EXPECT_TRUE(refused("refused 2 ")) << ranks_[1]->troubles();
  header = raw_->valid_header(0, 10);
  header.lane = 1000;
  raw_->send(header, 10);
  EXPECT_TRUE(refused("refused 3 ")) << ranks_[1]->troubles();
  raw_->send(raw_->valid_header(0, 10), 10, 20);
  EXPECT_TRUE(refused("refused 4 ")) << ranks_[1]->troubles();
  raw_->send(raw_->valid_header(0, 10), 10);
  EXPECT_EQ(await(), Arrival::kMessage) << "messages of the valid peer must still arrive";
}

TEST_F(UcxFaults, CreditsThatWereNeverSentForAreIgnored) {
  meet();
  auto send = ranks_[1]->open_send(0, 0).value();
  UcxHeader header = raw_->valid_header(0, 0);
  header.kind = UcxMessageType::kCredit;
  header.released = 1000;
  raw_->send(header, 0);
  raw_->send(raw_->valid_header(0, 1), 1);
  ASSERT_EQ(await(), Arrival::kMessage);
  std::size_t sent = 0;
  const std::byte byte{1};
  while (send->ready() && sent < 50) send->send_from(&byte, 1, call(1)), ++sent;
  EXPECT_EQ(sent, kSlots);
}

TEST_F(UcxFaults, AnIntroductionThatCannotBeReadIsAnErrorWithTheRank) {
  receive_ = ranks_[1]->open_receive(0, 0).value();
  raw_->introduce(kSlots + 1);
  EXPECT_TRUE(eventually([&] { return ranks_[1]->peer_status(0).life == PeerLife::kUnreachable; }));
  EXPECT_NE(ranks_[1]->peer_trouble(0).find("handshake"), std::string::npos) << ranks_[1]->peer_trouble(0);
  EXPECT_NE(ranks_[1]->troubles().find("rank 0"), std::string::npos) << ranks_[1]->troubles();
}

TEST_F(UcxFaults, AnEndpointThatEndsWithoutAWordMakesThePeerUnreachable) {
  meet();
  auto send = ranks_[1]->open_send(0, 0).value();
  raw_->send(raw_->valid_header(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  raw_->end();
  ASSERT_TRUE(tcp_test::eventually(
      [&] {
        ranks_[1]->pump();
        return ranks_[1]->peer_status(0).life == PeerLife::kUnreachable;
      },
      10000));
  EXPECT_NE(ranks_[1]->peer_trouble(0).find("UCX"), std::string::npos) << ranks_[1]->peer_trouble(0);
  EXPECT_FALSE(send->ready()) << "a message could not arrive";
  EXPECT_FALSE(send->handed_over()) << "the wait must end with the error that the peer cannot be reached";
  receive_->release();
  EXPECT_EQ(receive_->arrival(call(1)), Arrival::kNothing);
  EXPECT_FALSE(receive_->may_bring_more());
}

// With a real peer process.
TEST(UcxDeath, OfAProcessIsALossThatTcpNames) {
  if (!find_ucx()) GTEST_SKIP() << find_ucx().error().message;
  setenv("UCX_TLS", "tcp,self", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  int to_child[2];
  int to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  const pid_t child = fork();  // fork before any part of UCX is initialized
  ASSERT_GE(child, 0);
  const std::uint32_t rank = child == 0 ? 1 : 0;
  const auto own = tcp_test::endpoint();
  std::string mine = own->address();
  mine.resize(200, '\0');
  ASSERT_EQ(write(rank == 0 ? to_child[1] : to_parent[1], mine.data(), mine.size()), 200);
  std::string theirs(200, '\0');
  ASSERT_EQ(read(rank == 0 ? to_parent[0] : to_child[0], theirs.data(), theirs.size()), 200);
  theirs.resize(theirs.find('\0'));
  const auto maker = make_ucx_maker().value();
  std::vector<std::string> addresses = {theirs, theirs};
  std::vector<std::string> offers(2, maker->offer());
  addresses[rank].clear();
  offers[rank].clear();
  const TcpTransportOptions tcp{.rank = rank, .ranks = 2, .communicator = 5, .slots = kSlots, .slot_bytes = kSlotBytes};
  const DataPathOptions path{
      .rank = rank, .ranks = 2, .slots = kSlots, .slot_bytes = kSlotBytes, .lanes = tcp.lanes, .offers = offers};
  auto transport = OffloadTransport::create(tcp, own, addresses, [&](const DataPathHost& host) {
                     return maker->make(host, path);
                   }).value();
  auto send = transport->open_send(1 - rank, 0).value();
  auto receive = transport->open_receive(1 - rank, 0).value();
  send->send_from(nullptr, 0, call(1));
  const auto turn = [&] {
    transport->pump();
    transport->flush();
  };
  if (rank == 1) {
    for (;;) turn();  // runs until it is killed
  }
  Arrival arrival = Arrival::kNothing;
  EXPECT_TRUE(eventually([&] { return turn(), (arrival = receive->arrival(call(1))) != Arrival::kNothing; }));
  EXPECT_EQ(arrival, Arrival::kMessage);
  kill(child, SIGKILL);
  PeerLife life = PeerLife::kLive;
  EXPECT_TRUE(eventually([&] { return turn(), (life = transport->peer_status(1).life) != PeerLife::kLive; }));
  EXPECT_EQ(life, PeerLife::kLost) << "the TCP connections show more than UCX does";
  EXPECT_TRUE(eventually([&] { return turn(), !transport->peer_trouble(1).empty(); }))
      << "UCX must report an error too";
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace tutti::ucx_test
