// TLS sessions between two ends of a pair of sockets, with somebody on the way between them.
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

struct Side {
  Socket socket;
  std::unique_ptr<TlsSession> tls;
  std::string got;
  Moved end;  // of receiving

  void listen() {
    std::array<char, 5000> some{};
    iovec part{.iov_base = some.data(), .iov_len = some.size()};
    const Moved moved = tls->receive(socket.get(), {&part, 1});
    got.append(some.data(), moved.bytes);
    if (moved.ended) end = moved;
  }
};

// A client and a server, and between them a way that sees everything and may change it.
struct Way {
  Side client, server;
  Socket near_client, near_server;
  std::string seen[2];  // to the server, to the client
  std::size_t carried[2] = {0, 0};
  std::function<char(bool to_server, std::size_t place, char byte)> change;

  explicit Way(const Key& server_key = kKey, std::uint64_t records_per_key = 1u << 20) {
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
      std::array<char, 3000> some{};  // records are cut anywhere
      const Moved moved = receive_some(from.get(), reinterpret_cast<std::byte*>(some.data()), some.size());
      for (std::size_t i = 0; i < moved.bytes && change; ++i) some[i] = change(to_server, all.size() + i, some[i]);
      all.append(some.data(), moved.bytes);
      if (moved.ended) shutdown(to.get(), SHUT_WR);
      if (moved.bytes == 0) return;
    }
  }
  void turn() {
    client.listen();
    carry(near_client, near_server, true);
    server.listen();
    carry(near_server, near_client, false);
  }
  void turns(int count = 20) {
    for (int i = 0; i < count; ++i) turn();
  }
  // The whole text, by pieces, while the other side listens.
  void say(Side& from, const std::string& text) {
    std::size_t said = 0;
    for (int i = 0; i < 100000 && said < text.size() && !client.end.ended && !server.end.ended; ++i) {
      iovec parts[2] = {{.iov_base = const_cast<char*>(text.data()) + said, .iov_len = (text.size() - said) / 3}, {}};
      const std::size_t rest = text.size() - said - parts[0].iov_len;
      parts[1] = {.iov_base = static_cast<char*>(parts[0].iov_base) + parts[0].iov_len, .iov_len = rest};
      const Moved moved = from.tls->send(from.socket.get(), parts);
      said += moved.bytes;
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
  Way way;
  way.say(way.client, "a sentence that many could read");
  EXPECT_EQ(way.server.got, "a sentence that many could read");
  way.say(way.server, "and another");
  EXPECT_EQ(way.client.got, "and another");
  EXPECT_TRUE(way.client.tls->established());
  EXPECT_TRUE(way.server.tls->established());
  EXPECT_EQ(way.seen[0].find("sentence"), std::string::npos);
  EXPECT_EQ(way.seen[1].find("another"), std::string::npos);
  EXPECT_FALSE(way.client.end.ended);
}

TEST(Tls, CarriesAllSizesWhateverTheSystemTakesAtOnce) {
  for (const std::size_t bytes : {1, 47, 4096, 16383, 16384, 16385, 100000, 1000003}) {
    Way way;
    const int room = 20000;
    setsockopt(way.client.socket.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    const std::string text = pattern(bytes, static_cast<unsigned>(bytes));
    way.say(way.client, text);
    EXPECT_EQ(way.server.got.size(), text.size());
    EXPECT_TRUE(way.server.got == text) << bytes;
    EXPECT_FALSE(way.client.tls->unsent());
  }
}

TEST(Tls, ChangesItsKeysOnTheWay) {
  Way way(kKey, 3);
  const std::string text = pattern(2000000, 1);
  way.say(way.client, text);
  EXPECT_TRUE(way.server.got == text);
  way.say(way.server, text);
  EXPECT_TRUE(way.client.got == text);
}

// The public key that a server sends in its ServerHello, the first record that it writes; empty: there is none. The
// layout is that of RFC 8446, 4.1.3 and 4.2.8.
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

// The key exchange is fresh for each connection. So somebody who has recorded a connection and learns the job's key
// later cannot decrypt it.
TEST(Tls, EachConnectionHasAKeyExchangeOfItsOwn) {
  std::string shares[2];
  for (std::string& share : shares) {
    Way way;
    way.say(way.client, "a text");
    ASSERT_EQ(way.server.got, "a text");
    share = key_share_of_server(way.seen[1]);
    EXPECT_GE(share.size(), 32U) << "a public key of X25519 or P-256";
  }
  EXPECT_NE(shares[0], shares[1]);
}

TEST(Tls, AnotherKeyIsRefusedByBothEnds) {
  Way way(Key{8});
  way.say(way.client, "for the right one");
  way.turns();
  EXPECT_EQ(way.server.got, "");
  EXPECT_FALSE(way.client.tls->established());
  EXPECT_FALSE(way.server.tls->established());
  EXPECT_TRUE(way.client.end.ended && way.server.end.ended);
  EXPECT_EQ(way.client.end.error, tls_end::kRefused);
  EXPECT_EQ(way.server.end.error, tls_end::kRefused);
}

// Wherever one bit is changed, neither end is given anything but a beginning of what the other has said.
TEST(Tls, AChangedBitEndsItForBothAndIsNeverDelivered) {
  const std::string text = pattern(50000, 2);
  std::size_t whole = 0;
  std::size_t handshake = 0;
  {
    Way way;
    way.say(way.client, "x");
    handshake = way.seen[0].size();
    way.say(way.client, text);
    whole = way.seen[0].size();
  }
  int altered = 0;
  int refused = 0;
  for (std::size_t place = 0; place < whole; place += place < handshake ? 13 : 997) {
    Way way;
    way.change = [place](bool to_server, std::size_t at, char byte) {
      return static_cast<char>(to_server && at == place ? byte ^ 4 : byte);
    };
    way.say(way.client, "x");
    way.say(way.client, text);
    way.turns();
    EXPECT_EQ(("x" + text).compare(0, way.server.got.size(), way.server.got), 0) << place;
    EXPECT_LT(way.server.got.size(), text.size() + 1) << place;
    if (!way.server.end.ended) {
      continue;  // a length was made longer: it waits for the rest
    }
    EXPECT_TRUE(way.server.end.error == tls_end::kAltered || way.server.end.error == tls_end::kRefused) << place;
    altered += way.server.end.error == tls_end::kAltered ? 1 : 0;
    refused += way.server.end.error == tls_end::kRefused ? 1 : 0;
    ASSERT_TRUE(way.client.end.ended) << place;
    const int told = way.client.end.error;
    EXPECT_TRUE(told == tls_end::kPeerRefused || told == tls_end::kRefused || told == tls_end::kCut) << place << told;
  }
  EXPECT_GT(altered, 20);
  EXPECT_GT(refused, 10);
}

TEST(Tls, AnEndThatThePeerDidNotSpeakOfIsToldFromOneThatItDid) {
  for (const bool said : {true, false}) {
    Way way;
    way.say(way.client, "all of it");
    ASSERT_EQ(way.server.got, "all of it");
    if (said) way.client.tls->say_end(way.client.socket.get());
    way.client.socket.close();
    way.carry(way.near_client, way.near_server, true);
    way.server.listen();
    EXPECT_TRUE(way.server.end.ended);
    EXPECT_EQ(way.server.end.error, said ? 0 : tls_end::kCut);
  }
}

TEST(Tls, SaysWordsForEveryEnd) {
  for (const int error : {tls_end::kRefused, tls_end::kAltered, tls_end::kPeerRefused, tls_end::kCut}) {
    EXPECT_TRUE(words_of_end(error).starts_with("TLS: ")) << error;
  }
  EXPECT_EQ(words_of_end(0), "end of file");
  EXPECT_EQ(words_of_end(ECONNRESET), std::strerror(ECONNRESET));
}

}  // namespace
}  // namespace tutti
