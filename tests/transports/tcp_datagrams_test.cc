// Tests of TcpOobDatagrams: connections for datagrams that are opened, accepted, closed and opened again.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tcp_support.h"
#include "transports/tcp/oob_datagrams.h"

namespace tutti::tcp_test {
namespace {

constexpr std::uint64_t kChannel = 4711;

struct Pair {
  std::shared_ptr<TcpEndpoint> endpoints[2];
  std::unique_ptr<TcpOobDatagrams> ranks[2];

  explicit Pair(bool encrypt = encrypted()) {
    for (auto& one : endpoints) one = endpoint({.address = "127.0.0.1", .encrypt = encrypt});
  }
  void make(std::uint32_t rank) {
    std::vector<std::string> addresses(2);
    addresses[1 - rank] = endpoints[1 - rank]->address();
    ranks[rank] = std::make_unique<TcpOobDatagrams>(endpoints[rank], kChannel, rank, addresses);
  }
  // Returns the next datagram that `rank` receives from the other rank, or "nothing" after a timeout.
  std::string next(std::uint32_t rank) {
    std::optional<std::string> datagram;
    const bool received = eventually([&] {
      for (auto& one : ranks) {
        if (one != nullptr) one->pump();
      }
      datagram = ranks[rank]->take(1 - rank);
      return datagram.has_value();
    });
    return received ? *datagram : "nothing";
  }
  bool sees_the_end(std::uint32_t rank) {
    return eventually([&] {
      ranks[rank]->pump();
      return ranks[rank]->gone(1 - rank);
    });
  }
};

TEST(TcpOobDatagrams, GoBothWaysOnOneLineInOrder) {
  Pair pair;
  pair.make(0);
  pair.make(1);
  pair.ranks[1]->post(0, "one");
  pair.ranks[1]->post(0, "");
  pair.ranks[1]->post(0, std::string(kMostDatagramBytes, 'x'));
  EXPECT_EQ(pair.next(0), "one");
  EXPECT_EQ(pair.next(0), "");
  EXPECT_EQ(pair.next(0), std::string(kMostDatagramBytes, 'x'));
  // 14 MB, which is usually more than the sockets hold.
  for (int i = 0; i < 3500; ++i) pair.ranks[0]->post(1, std::string(4000, 'a') + std::to_string(i));
  for (int i = 0; i < 3500; ++i) ASSERT_EQ(pair.next(1), std::string(4000, 'a') + std::to_string(i));
  EXPECT_TRUE(pair.ranks[0]->all_sent_to(1));
  EXPECT_FALSE(pair.ranks[0]->gone(1));
  EXPECT_FALSE(pair.ranks[1]->gone(0));
}

TEST(TcpOobDatagrams, WaitForARankThatIsNotThereYetAndOutliveTheirSender) {
  Pair pair;
  pair.make(1);
  pair.ranks[1]->post(0, "early");
  pair.ranks[1]->post(0, "last");
  EXPECT_TRUE(eventually([&] {
    pair.endpoints[0]->service();
    pair.ranks[1]->pump();
    return pair.ranks[1]->all_sent_to(0);
  }));
  pair.ranks[1].reset();
  pair.make(0);
  EXPECT_EQ(pair.next(0), "early");
  EXPECT_EQ(pair.next(0), "last");
  EXPECT_TRUE(pair.sees_the_end(0));
  pair.ranks[0]->post(1, "to nobody");
}

TEST(TcpOobDatagrams, BeginAnewAfterHangingUp) {
  Pair pair;
  pair.make(0);
  pair.make(1);
  for (const char* word : {"first", "second"}) {
    pair.ranks[1]->post(0, word);
    EXPECT_EQ(pair.next(0), word);
    EXPECT_FALSE(pair.ranks[0]->gone(1));
    pair.ranks[0]->post(1, "answer");
    EXPECT_EQ(pair.next(1), "answer");
    pair.ranks[1]->hang_up(0);
    EXPECT_TRUE(pair.sees_the_end(0));
    EXPECT_FALSE(pair.ranks[1]->gone(0)) << "the rank that closed the connection must not report the peer as gone";
  }
}

// The peer connects again before this rank has taken the datagrams of the earlier connection. In the first case this
// rank has already received them, in the second case they are still in the socket.
TEST(TcpOobDatagrams, ThatWereNotTakenOutliveTheirConnection) {
  for (const bool received : {true, false}) {
    Pair pair;
    pair.make(0);
    pair.make(1);
    const auto send = [&](const std::string& datagram) {
      pair.ranks[1]->post(0, datagram);
      EXPECT_TRUE(eventually([&] {
        pair.endpoints[0]->service();  // continues a TLS handshake without taking the connection
        pair.ranks[1]->pump();
        return pair.ranks[1]->all_sent_to(0);
      }));
    };
    send("one");
    send("two");
    if (received) {
      EXPECT_EQ(pair.next(0), "one");
    }
    pair.ranks[1]->hang_up(0);
    if (received) {
      EXPECT_TRUE(pair.sees_the_end(0));
    }
    send("three");
    EXPECT_TRUE(eventually([&] { return pair.ranks[0]->pump(), !pair.ranks[0]->gone(1); }));
    if (!received) {
      EXPECT_EQ(pair.next(0), "one");
    }
    EXPECT_EQ(pair.next(0), "two") << "received: " << received;
    EXPECT_EQ(pair.next(0), "three");
    EXPECT_EQ(pair.ranks[0]->take(1), std::nullopt);
    pair.ranks[0]->post(1, "answer");
    EXPECT_EQ(pair.next(1), "answer") << "the new connection must work in both directions";
  }
}

TEST(TcpOobDatagrams, TellThatNobodyIsThere) {
  Pair pair;
  pair.make(1);
  pair.endpoints[0].reset();
  pair.ranks[1]->post(0, "hello");
  EXPECT_TRUE(pair.sees_the_end(1));
  // The communicator of the peer has ended, but its process is still running.
  Pair other;
  other.make(0);
  other.make(1);
  other.ranks[0].reset();
  other.ranks[1]->post(0, "hello");
  EXPECT_TRUE(eventually([&] {
    other.endpoints[0]->service();
    other.ranks[1]->pump();
    return other.ranks[1]->gone(0);
  }));
}

// A connection that sends anything other than datagrams is closed. Datagrams that arrived before that still count.
TEST(TcpOobDatagrams, EndALineThatSaysSomethingElse) {
  for (const bool too_long : {false, true}) {
    Pair pair(false);  // the test itself acts as the peer
    pair.make(0);
    const auto address = PeerAddress::parse(pair.endpoints[0]->address(), 0);
    ASSERT_TRUE(address.ok());
    auto socket = connect_to(address->socket, 0, 0);
    ASSERT_TRUE(socket.ok());
    Preamble preamble;
    preamble.kind = TcpLinkKind::kDatagrams;
    preamble.nonce = address->nonce;
    preamble.communicator = kChannel;
    preamble.sender = 1;
    endpoint()->sign(preamble);
    FrameHeader header{.kind = FrameKind::kDatagram, .bytes = 2};
    std::string said(reinterpret_cast<const char*>(&preamble), sizeof(preamble));
    said.append(reinterpret_cast<const char*>(&header), sizeof(header)).append("ok");
    if (too_long) {
      header.bytes = kMostDatagramBytes + 1;
    } else {
      header.kind = FrameKind::kMessage;
    }
    said.append(reinterpret_cast<const char*>(&header), sizeof(header)).append("more");
    ASSERT_TRUE(eventually([&] {
      iovec part{.iov_base = said.data(), .iov_len = said.size()};
      said.erase(0, send_some(socket->get(), {&part, 1}).bytes);
      return said.empty();
    }));
    EXPECT_EQ(pair.next(0), "ok");
    EXPECT_TRUE(pair.sees_the_end(0));
    EXPECT_EQ(pair.ranks[0]->take(1), std::nullopt);
  }
}

}  // namespace
}  // namespace tutti::tcp_test
