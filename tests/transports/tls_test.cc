// Tests of TlsSession between two ends. Their bytes pass through a relay, which records them and can change them.
#include "transports/tcp/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>

namespace tutti {
namespace {

using End = TlsSession::End;

const Key kKey = {7, 7, 7};

struct TestEnd {
  Socket socket;
  std::unique_ptr<TlsSession> tls;
  std::string got;
  Moved end;  // how receiving ended

  void receive_available() {
    std::array<char, 5000> some{};
    iovec part{.iov_base = some.data(), .iov_len = some.size()};
    const Moved moved = tls->receive(socket.get(), {&part, 1});
    got.append(some.data(), moved.bytes);
    if (moved.ended) end = moved;
  }
};

// A client and a server, connected through a relay that sees every byte and can change it.
struct RelayedPair {
  TestEnd client, server;
  Socket near_client, near_server;
  std::string seen[2];  // the bytes to the server, and to the client
  std::size_t carried[2] = {0, 0};
  std::function<char(bool to_server, std::size_t position, char byte)> change;

  explicit RelayedPair(const Key& server_key = kKey, std::uint64_t records_per_key = 1u << 20) {
    make_pair(client.socket, near_client);
    make_pair(server.socket, near_server);
    client.tls = TlsSession::create({.end = End::kClient, .key = kKey, .records_per_key = records_per_key}).value();
    server.tls =
        TlsSession::create({.end = End::kServer, .key = server_key, .records_per_key = records_per_key}).value();
  }
  static void make_pair(Socket& one, Socket& other) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    one = Socket(fds[0]);
    other = Socket(fds[1]);
  }
  void carry(Socket& from, Socket& to, bool to_server) {
    if (!from.is_open() || !to.is_open()) return;
    std::string& all = seen[to_server ? 0 : 1];
    std::size_t& done = carried[to_server ? 0 : 1];
    while (true) {
      while (done < all.size()) {
        iovec part{.iov_base = all.data() + done, .iov_len = all.size() - done};
        const Moved moved = send_some(to.get(), {&part, 1});
        done += moved.bytes;
        if (moved.bytes == 0) return;
      }
      std::array<char, 3000> some{};  // an odd length, so that records are split anywhere
      const Moved moved = receive_some(from.get(), reinterpret_cast<std::byte*>(some.data()), some.size());
      for (std::size_t i = 0; i < moved.bytes && change; ++i) some[i] = change(to_server, all.size() + i, some[i]);
      all.append(some.data(), moved.bytes);
      if (moved.ended) shutdown(to.get(), SHUT_WR);
      if (moved.bytes == 0) return;
    }
  }
  void turn() {
    client.receive_available();
    carry(near_client, near_server, true);
    server.receive_available();
    carry(near_server, near_client, false);
  }
  void turns(int count = 20) {
    for (int i = 0; i < count; ++i) turn();
  }
  // Sends the whole text in several parts, while the other end receives.
  void send_text(TestEnd& from, const std::string& text) {
    std::size_t sent_bytes = 0;
    for (int i = 0; i < 100000 && sent_bytes < text.size() && !client.end.ended && !server.end.ended; ++i) {
      iovec parts[2] = {
          {.iov_base = const_cast<char*>(text.data()) + sent_bytes, .iov_len = (text.size() - sent_bytes) / 3}, {}};
      const std::size_t rest = text.size() - sent_bytes - parts[0].iov_len;
      parts[1] = {.iov_base = static_cast<char*>(parts[0].iov_base) + parts[0].iov_len, .iov_len = rest};
      const Moved moved = from.tls->send(from.socket.get(), parts);
      sent_bytes += moved.bytes;
      turn();
      if (moved.ended) return;
    }
    const auto& other = &from == &client ? server : client;
    for (std::size_t had = 0, still = 0; still < 5; had = other.got.size()) {
      turn();
      still = other.got.size() == had ? still + 1 : 0;
    }
  }
};

std::string pattern(std::size_t bytes, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::string made(bytes, '\0');
  for (char& byte : made) byte = static_cast<char>(random());
  return made;
}

TEST(Tls, CarriesBytesBothWaysAndNothingOfThemIsReadable) {
  RelayedPair relayed;
  relayed.send_text(relayed.client, "a sentence that many could read");
  EXPECT_EQ(relayed.server.got, "a sentence that many could read");
  relayed.send_text(relayed.server, "and another");
  EXPECT_EQ(relayed.client.got, "and another");
  EXPECT_TRUE(relayed.client.tls->established());
  EXPECT_TRUE(relayed.server.tls->established());
  EXPECT_EQ(relayed.seen[0].find("sentence"), std::string::npos);
  EXPECT_EQ(relayed.seen[1].find("another"), std::string::npos);
  EXPECT_FALSE(relayed.client.end.ended);
}

TEST(Tls, CarriesAllSizesWhateverTheSystemTakesAtOnce) {
  for (const std::size_t bytes : {1, 47, 4096, 16383, 16384, 16385, 100000, 1000003}) {
    RelayedPair relayed;
    const int room = 20000;
    setsockopt(relayed.client.socket.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    const std::string text = pattern(bytes, static_cast<unsigned>(bytes));
    relayed.send_text(relayed.client, text);
    EXPECT_EQ(relayed.server.got.size(), text.size());
    EXPECT_TRUE(relayed.server.got == text) << bytes;
    EXPECT_FALSE(relayed.client.tls->unsent());
  }
}

TEST(Tls, ChangesItsKeysOnTheWay) {
  RelayedPair relayed(kKey, 3);
  const std::string text = pattern(2000000, 1);
  relayed.send_text(relayed.client, text);
  EXPECT_TRUE(relayed.server.got == text);
  relayed.send_text(relayed.server, text);
  EXPECT_TRUE(relayed.client.got == text);
}

// Returns the public key that a server sends in its ServerHello, which is the first record that it writes. Empty if
// there is none. The layout is that of RFC 8446, sections 4.1.3 and 4.2.8.
std::string key_share_of_server(const std::string& bytes) {
  std::size_t at = 0;
  const auto number = [&](std::size_t width) {
    std::size_t value = 0;
    for (std::size_t i = 0; i < width && at < bytes.size(); ++i) {
      value = value << 8 | static_cast<unsigned char>(bytes[at++]);
    }
    return value;
  };
  at = 5 + 4 + 2 + 32;  // headers of the record and of the message, version, random bytes
  at += number(1);      // session id
  at += 2 + 1 + 2;      // cipher suite, compression, length of all extensions
  while (at + 4 <= bytes.size()) {
    const std::size_t type = number(2);
    const std::size_t length = number(2);
    if (type == 51) return bytes.substr(at + 4, length - 4);
    at += length;
  }
  return "";
}

// The key exchange is fresh for each connection. So an attacker that has recorded a connection and learns the job's
// key later cannot decrypt it.
TEST(Tls, EachConnectionHasAKeyExchangeOfItsOwn) {
  std::string shares[2];
  for (std::string& share : shares) {
    RelayedPair relayed;
    relayed.send_text(relayed.client, "a text");
    ASSERT_EQ(relayed.server.got, "a text");
    share = key_share_of_server(relayed.seen[1]);
    EXPECT_GE(share.size(), 32U) << "must be a public key of X25519 or P-256";
  }
  EXPECT_NE(shares[0], shares[1]);
}

TEST(Tls, AnotherKeyIsRefusedByBothEnds) {
  RelayedPair relayed(Key{8});
  relayed.send_text(relayed.client, "for the right one");
  relayed.turns();
  EXPECT_EQ(relayed.server.got, "");
  EXPECT_FALSE(relayed.client.tls->established());
  EXPECT_FALSE(relayed.server.tls->established());
  EXPECT_TRUE(relayed.client.end.ended && relayed.server.end.ended);
  EXPECT_EQ(relayed.client.end.error, tls_end::kRefused);
  EXPECT_EQ(relayed.server.end.error, tls_end::kRefused);
}

// Wherever one bit is changed, each end receives only a prefix of the data that the other end has sent.
TEST(Tls, AChangedBitEndsItForBothAndIsNeverDelivered) {
  const std::string text = pattern(50000, 2);
  std::size_t whole = 0;
  std::size_t handshake = 0;
  {
    RelayedPair relayed;
    relayed.send_text(relayed.client, "x");
    handshake = relayed.seen[0].size();
    relayed.send_text(relayed.client, text);
    whole = relayed.seen[0].size();
  }
  int altered = 0;
  int refused = 0;
  for (std::size_t position = 0; position < whole; position += position < handshake ? 13 : 997) {
    RelayedPair relayed;
    relayed.change = [position](bool to_server, std::size_t at, char byte) {
      return static_cast<char>(to_server && at == position ? byte ^ 4 : byte);
    };
    relayed.send_text(relayed.client, "x");
    relayed.send_text(relayed.client, text);
    relayed.turns();
    EXPECT_EQ(("x" + text).compare(0, relayed.server.got.size(), relayed.server.got), 0) << position;
    EXPECT_LT(relayed.server.got.size(), text.size() + 1) << position;
    if (!relayed.server.end.ended) {
      continue;  // a length field was increased, so the server waits for more data
    }
    EXPECT_TRUE(relayed.server.end.error == tls_end::kAltered || relayed.server.end.error == tls_end::kRefused)
        << position;
    altered += relayed.server.end.error == tls_end::kAltered ? 1 : 0;
    refused += relayed.server.end.error == tls_end::kRefused ? 1 : 0;
    ASSERT_TRUE(relayed.client.end.ended) << position;
    const int client_error = relayed.client.end.error;
    EXPECT_TRUE(client_error == tls_end::kPeerRefused || client_error == tls_end::kRefused ||
                client_error == tls_end::kCut)
        << position << client_error;
  }
  EXPECT_GT(altered, 20);
  EXPECT_GT(refused, 10);
}

TEST(Tls, AnEndThatThePeerDidNotSpeakOfIsToldFromOneThatItDid) {
  for (const bool sent_bytes : {true, false}) {
    RelayedPair relayed;
    relayed.send_text(relayed.client, "all of it");
    ASSERT_EQ(relayed.server.got, "all of it");
    if (sent_bytes) relayed.client.tls->send_close_notify(relayed.client.socket.get());
    relayed.client.socket.close();
    relayed.carry(relayed.near_client, relayed.near_server, true);
    relayed.server.receive_available();
    EXPECT_TRUE(relayed.server.end.ended);
    EXPECT_EQ(relayed.server.end.error, sent_bytes ? 0 : tls_end::kCut);
  }
}

TEST(Tls, SaysWordsForEveryEnd) {
  for (const int error : {tls_end::kRefused, tls_end::kAltered, tls_end::kPeerRefused, tls_end::kCut}) {
    EXPECT_TRUE(describe_end_error(error).starts_with("TLS: ")) << error;
  }
  EXPECT_EQ(describe_end_error(0), "end of file");
  EXPECT_EQ(describe_end_error(ECONNRESET), std::strerror(ECONNRESET));
}

}  // namespace
}  // namespace tutti
