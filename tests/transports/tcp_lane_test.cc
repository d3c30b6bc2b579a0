// Tests of a TCP lane, which can use one socket for both directions. When messages are short, the higher rank
// switches to the socket that the lower rank has opened. When they are long, it switches back to its own.
#include <algorithm>
#include <cstring>
#include <thread>
#include <tuple>

#include "tests/transports/tcp_support.h"

namespace tutti::tcp_test {
namespace {

class NullDoorbell final : public Doorbell {
 public:
  void arm() override {}
  void disarm() override {}
  void sleep(std::int64_t) override {}
  void ring() override {}
};

// One real rank of two. The test itself acts as the other rank.
struct RankWithPlayedPeer {
  std::uint32_t rank;
  std::vector<std::shared_ptr<TcpEndpoint>> endpoints{endpoint(), endpoint()};
  NullDoorbell doorbell;
  std::shared_ptr<TcpMailbox> mailbox;  // the mailbox of the rank that the test plays
  std::unique_ptr<TcpTransport> transport;
  std::vector<AcceptedLink> links;  // the connections that the real rank has opened

  explicit RankWithPlayedPeer(std::uint32_t real) : rank(real) {
    mailbox = endpoints[1 - rank]->attach(kCommunicator, 1 - rank, doorbell);
    transport =
        TcpTransport::create(options(), endpoints[rank], {endpoints[0]->address(), endpoints[1]->address()}).value();
  }
  TcpTransportOptions options() const {
    return {.rank = rank, .ranks = 2, .communicator = kCommunicator, .slots = kSlots, .slot_bytes = kSlotBytes};
  }
  RawPeer connect() {
    RawPeer peer(endpoints[rank]->address());
    peer.write(peer.preamble(options(), 1 - rank));
    return peer;
  }
  int accept() {
    eventually([&] {
      transport->flush();
      endpoints[1 - rank]->service();
      links = endpoints[1 - rank]->take(*mailbox);
      return !links.empty();
    });
    return links.at(0).socket.get();
  }
};

FrameHeader read_frame(int fd) {
  FrameHeader frame;
  std::size_t have = 0;
  EXPECT_TRUE(eventually([&] {
    have += receive_some(fd, reinterpret_cast<std::byte*>(&frame) + have, sizeof(frame) - have).bytes;
    return have == sizeof(frame);
  }));
  return frame;
}

void write_frame(int fd, FrameHeader frame) {
  iovec part{.iov_base = &frame, .iov_len = sizeof(frame)};
  ASSERT_EQ(send_some(fd, {&part, 1}).bytes, sizeof(frame));
}

void send_empty(RankWithPlayedPeer& half, SendConnection& send, std::uint64_t sequence) {
  ASSERT_TRUE(send.ready());
  send.send_from(nullptr, 0, call(sequence));
  ASSERT_TRUE(eventually([&] { return half.transport->flush(); }));
}

const FrameHeader kMovedFrame{.kind = FrameKind::kMoved};

TEST(TcpLane, TheHigherRankGoesOnWithTheSocketOfTheLower) {
  RankWithPlayedPeer half(1);
  auto send = half.transport->open_send(0, 0).value();
  auto receive = half.transport->open_receive(0, 0).value();
  send_empty(half, *send, 1);
  const int own = half.accept();
  EXPECT_EQ(read_frame(own).tag, call(1)) << "the other rank's socket does not exist yet";
  RawPeer lower = half.connect();
  lower.write(message(0, call(1)));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  const auto next = [&](int fd) {
    const FrameHeader frame = read_frame(fd);
    return frame.kind == FrameKind::kMoved ? 0 : frame.tag.sequence;
  };
  for (std::uint64_t sequence = 2; sequence <= 6; ++sequence) send_empty(half, *send, sequence);
  for (std::uint64_t sequence = 2; sequence <= 4; ++sequence) EXPECT_EQ(next(own), sequence);
  EXPECT_EQ(next(own), 0u) << "the rank switches sockets after several short messages";
  for (std::uint64_t sequence = 5; sequence <= 6; ++sequence) EXPECT_EQ(next(lower.fd()), sequence);
  // Long messages make the rank switch back.
  std::vector<std::byte> payload(20000);
  for (std::uint64_t sequence = 7; sequence <= 10; ++sequence) {
    ASSERT_TRUE(eventually([&] { return send->ready(); }));
    send->send_from(payload.data(), payload.size(), call(sequence));
    const bool back = sequence == 10;
    if (back) {
      EXPECT_EQ(next(lower.fd()), 0u);
    }
    const int fd = back ? own : lower.fd();
    EXPECT_EQ(next(fd), sequence);
    std::size_t have = 0;
    EXPECT_TRUE(eventually([&] {
      half.transport->flush();
      have += receive_some(fd, payload.data(), payload.size() - have).bytes;
      return have == payload.size();
    }));
  }
  half.transport->enter_call(call(10), {});
  half.transport = nullptr;
  EXPECT_EQ(read_frame(lower.fd()).kind, FrameKind::kClose);
  EXPECT_EQ(read_frame(own).kind, FrameKind::kClose) << "the close frame is sent on both sockets";
}

TEST(TcpLane, TheLowerRankStaysAndFollowsWhoMoves) {
  RankWithPlayedPeer half(0);
  auto send = half.transport->open_send(1, 0).value();
  auto receive = half.transport->open_receive(1, 0).value();
  send_empty(half, *send, 1);
  const int common = half.accept();
  EXPECT_EQ(read_frame(common).tag, call(1));
  RawPeer higher = half.connect();
  higher.write(message(0, call(1)));
  higher.write(kMovedFrame);
  write_frame(common, message(0, call(2)));
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  ASSERT_EQ(await(*receive, call(2)), Arrival::kMessage);
  receive->release();
  send_empty(half, *send, 2);
  EXPECT_EQ(read_frame(common).tag, call(2));
  EXPECT_EQ(half.transport->peer_status(1).life, PeerLife::kLive);
  // The peer switches to the other socket, back, and again, before this rank reads anything.
  higher.write(message(0, call(5)));
  higher.write(kMovedFrame);
  write_frame(common, message(0, call(3)));
  write_frame(common, message(0, call(4)));
  write_frame(common, kMovedFrame);
  write_frame(common, message(0, call(6)));
  for (std::uint64_t sequence = 3; sequence <= 6; ++sequence) {
    ASSERT_EQ(await(*receive, call(sequence)), Arrival::kMessage) << sequence;
    receive->release();
  }
}

TEST(TcpLane, ALowerRankThatMovesIsCorrupt) {
  RankWithPlayedPeer half(1);
  auto send = half.transport->open_send(0, 0).value();
  auto receive = half.transport->open_receive(0, 0).value();
  RawPeer lower = half.connect();
  lower.write(kMovedFrame);
  EXPECT_EQ(await(*receive, call(1)), Arrival::kCorrupt);
}

TEST(TcpLane, ItsEndIsADeathUnlessAGoodbyeStandsThere) {
  for (const bool goodbye : {false, true}) {
    RankWithPlayedPeer half(0);
    auto send = half.transport->open_send(1, 0).value();
    auto receive = half.transport->open_receive(1, 0).value();
    send_empty(half, *send, 1);
    const int common = half.accept();
    RawPeer higher = half.connect();
    higher.write(kMovedFrame);
    write_frame(common, message(0, call(1)));
    ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
    receive->release();
    write_frame(common, message(8, call(2)));  // its payload never arrives, or a close frame follows it
    if (goodbye) {
      const std::uint64_t payload = 5;
      iovec part{.iov_base = const_cast<std::uint64_t*>(&payload), .iov_len = sizeof(payload)};
      ASSERT_EQ(send_some(common, {&part, 1}).bytes, sizeof(payload));
      write_frame(common, make_close_frame(2, 2));
    }
    half.links.clear();
    const PeerLife expected = goodbye ? PeerLife::kLeft : PeerLife::kLost;
    EXPECT_TRUE(eventually([&] {
      half.transport->pump();
      return half.transport->peer_status(1).life == expected;
    }));
    EXPECT_EQ(receive->arrival(call(2)), goodbye ? Arrival::kMessage : Arrival::kNothing);
  }
}

constexpr std::uint64_t kMessages = 3000;

std::size_t length_of(std::uint64_t number) {
  const std::size_t lengths[] = {0, 8, 8, 8, 1000, 4097, 8, 30000, 100000, 16385, kSlotBytes, 30000, 16336};
  return lengths[number % std::size(lengths)];
}

// Sends and receives at the same time. The rank may have sent more messages than it has received.
void exchange(TcpTransport& rank, std::uint32_t self, SendConnection& send, ReceiveConnection& receive) {
  std::vector<std::byte> data(kSlotBytes);
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  ASSERT_TRUE(eventually(
      [&] {
        if (sent < kMessages && send.ready()) {
          std::fill_n(data.begin(), length_of(sent), static_cast<std::byte>(sent * 2 + self));
          send.send_from(data.data(), length_of(sent), call(1));
          ++sent;
        }
        if (sent % 3 == 0 || sent == kMessages) rank.flush();
        if (received < kMessages && receive.arrival(call(1)) == Arrival::kMessage) {
          const Message got = receive.front();
          EXPECT_EQ(got.bytes, length_of(received));
          const auto expected = static_cast<std::byte>(received * 2 + (1 - self));
          EXPECT_TRUE(std::all_of(got.data, got.data + got.bytes, [&](std::byte byte) { return byte == expected; }));
          receive.release();
          ++received;
        }
        return received == kMessages && sent == kMessages && send.handed_over();
      },
      2 * test::patience().count()))
      << sent << " sent, " << received << " received";
}

TEST(TcpLane, NothingIsLostOrSwappedWhenItMoves) {
  for (int round = 0; round < 3; ++round) {
    TestJob job;
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&job, rank, round] {
        TcpTransport& self = *job.ranks[rank];
        // Delay one rank in the first two rounds, so that the switch happens at different moments.
        if (round == static_cast<int>(rank)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        auto send = job.send(rank, 1 - rank);
        auto receive = job.receive(1 - rank, rank);
        exchange(self, rank, *send, *receive);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

struct Pair {
  TestJob job;
  std::unique_ptr<SendConnection> send[2];        // indexed by sender
  std::unique_ptr<ReceiveConnection> receive[2];  // indexed by receiver

  Pair() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      send[rank] = job.send(rank, 1 - rank);
      receive[rank] = job.receive(1 - rank, rank);
    }
    for (std::uint64_t sequence = 1; sequence <= 6; ++sequence) {
      for (std::uint32_t rank = 0; rank < 2; ++rank) pass(rank, sequence);
    }
  }
  void pass(std::uint32_t from, std::uint64_t sequence) {
    send[from]->send_from(nullptr, 0, call(sequence));
    EXPECT_TRUE(job.flushed(from));
    ASSERT_EQ(await(*receive[1 - from], call(sequence)), Arrival::kMessage);
    receive[1 - from]->release();
  }
};

// The parameters: which rank ends a connection, and whether it is its sending connection.
class TcpLaneEnds : public testing::TestWithParam<std::tuple<std::uint32_t, bool>> {};

TEST_P(TcpLaneEnds, OneDirectionLeavesTheOtherWhole) {
  const std::uint32_t who = std::get<0>(GetParam());
  const bool its_sender = std::get<1>(GetParam());
  Pair pair;
  if (its_sender) {
    pair.send[who] = nullptr;
  } else {
    pair.receive[who] = nullptr;
  }
  const std::uint32_t still_sends = its_sender ? 1 - who : who;
  pair.pass(still_sends, 7);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    pair.job.ranks[rank]->pump();
    EXPECT_EQ(pair.job.ranks[rank]->peer_status(1 - rank).life, PeerLife::kLive);
  }
  pair.job.ranks[who] = nullptr;
  EXPECT_TRUE(eventually([&] {
    pair.job.ranks[1 - who]->pump();
    return pair.job.ranks[1 - who]->peer_status(who).life != PeerLife::kLive;
  }));
  EXPECT_EQ(pair.job.ranks[1 - who]->peer_status(who).life, PeerLife::kLeft);
}

INSTANTIATE_TEST_SUITE_P(OfEither, TcpLaneEnds,
                         testing::Combine(testing::Values(std::uint32_t{0}, std::uint32_t{1}), testing::Bool()));

// If a socket is closed while it holds unread data, the kernel discards the data that was sent through it.
TEST(TcpLane, WhatALeaverHasNotReadTakesNothingBack) {
  for (std::uint32_t leaver = 0; leaver < 2; ++leaver) {
    Pair pair;
    TcpTransport& leaving = *pair.job.ranks[leaver];
    pair.send[1 - leaver]->send_from(nullptr, 0, call(7));
    ASSERT_TRUE(eventually([&] { return pair.job.ranks[1 - leaver]->flush(); }));
    const std::vector<std::byte> data(kSlotBytes, std::byte{3});
    std::size_t sent = 0;
    std::size_t got = 0;
    ReceiveConnection& receive = *pair.receive[1 - leaver];
    const auto read_one = [&] {
      ASSERT_EQ(await(receive, call(7)), Arrival::kMessage);
      ASSERT_EQ(receive.front().bytes, data.size());
      receive.release();
      ++got;
    };
    for (; sent < 200 && leaving.flush(); ++sent) pair.send[leaver]->send_from(data.data(), data.size(), call(7));
    ASSERT_LT(sent, 200u) << "the kernel must refuse some of the data";
    while (!leaving.flush()) read_one();
    pair.send[leaver] = nullptr;
    pair.job.ranks[leaver] = nullptr;
    while (got < sent) read_one();
  }
}

}  // namespace
}  // namespace tutti::tcp_test
