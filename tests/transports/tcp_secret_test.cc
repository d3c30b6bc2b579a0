// The TCP transport by TLS: what it delivers and tells as it does in clear, and who is not believed.
#include <gtest/gtest.h>

#include <thread>

#include "tests/transports/tcp_support.h"

namespace tutti::tcp_test {
namespace {

struct SecretWorld : World {
  explicit SecretWorld(std::uint32_t count = 2) : World(count, "127.0.0.1", kSlots, true) {}
  PeerLife life_of(std::uint32_t rank, std::uint32_t peer, PeerLife awaited) {
    PeerLife life = PeerLife::kLive;
    eventually(
        [&] {
          for (auto& one : ranks) {
            if (one != nullptr) one->pump();
          }
          return (life = ranks[rank]->peer_status(peer).life) == awaited;
        },
        10000);
    return life;
  }
};

const std::vector<std::byte> kData(60000, std::byte{5});

TEST(TcpSecret, MessagesGoodbyesAndDeathsAreToldAsInClear) {
  for (const bool dies : {false, true}) {
    SecretWorld world;
    auto send = world.send(0, 1);
    auto receive = world.receive(0, 1);
    world.ranks[0]->enter_call(call(1), {});
    for (int i = 0; i < 3; ++i) send->send_from(kData.data(), 20000, call(1));
    ASSERT_TRUE(world.flushed(0));
    world.ranks[0]->leave_call(call(1), std::nullopt);
    if (dies) {
      // A process that is killed: all of its sockets close, and nothing is said on them.
      for (int fd = 3; fd < 1024; ++fd) {
        sockaddr_in local{};
        sockaddr_in peer{};
        socklen_t size = sizeof(local);
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0 || local.sin_family != AF_INET) continue;
        size = sizeof(peer);
        if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
        const std::uint16_t port = PeerAddress::parse(world.addresses[1], 1)->socket.port();
        if (ntohs(peer.sin_port) == port) shutdown(fd, SHUT_RDWR);
      }
    } else {
      send = nullptr;
      world.ranks[0] = nullptr;
    }
    const PeerLife end = dies ? PeerLife::kLost : PeerLife::kLeft;
    if (!dies) {
      EXPECT_EQ(world.life_of(1, 0, end), end) << "before its data is read";
      EXPECT_TRUE(world.ranks[1]->peer_has_left(0, 1));
    }
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage) << i;
      EXPECT_EQ(receive->front().bytes, 20000u);
      EXPECT_EQ(std::memcmp(receive->front().data, kData.data(), 20000), 0);
      receive->release();
    }
    EXPECT_EQ(world.life_of(1, 0, end), end);
  }
}

TEST(TcpSecret, WhoComesLateIsToldSoInClearAndBelievesIt) {
  SecretWorld world;
  world.ranks[1]->enter_call(call(7), {});
  world.ranks[1]->leave_call(call(7), std::nullopt);
  world.ranks[1] = nullptr;
  auto send = world.send(0, 1);
  send->send_from(kData.data(), 100, call(8));
  EXPECT_TRUE(eventually([&] {
    world.endpoints[1]->service();
    world.ranks[0]->flush();
    world.ranks[0]->pump();
    return world.ranks[0]->peer_status(1).life == PeerLife::kLeft;
  }));
  EXPECT_TRUE(world.ranks[0]->peer_has_left(1, 7));
}

// Who listens at a peer's address, answers connections with `answer`, and has seen their first bytes.
struct Imposter {
  Socket listener, accepted;
  std::string seen;
  PeerAddress address;

  explicit Imposter(const std::string& of) : address(PeerAddress::parse(of, 1).value()) {
    SocketAddress anywhere = parse_host("127.0.0.1").value();
    listener = listen_on(anywhere).value();
    address.socket = local_address(listener.get());
  }
  bool hear() {
    if (!accepted.is_open()) {
      accepted = Socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    }
    std::array<char, 4096> some{};
    if (!accepted.is_open()) return false;
    const Moved moved = receive_some(accepted.get(), reinterpret_cast<std::byte*>(some.data()), some.size());
    seen.append(some.data(), moved.bytes);
    return seen.size() > sizeof(Preamble);
  }
  void say(std::string_view bytes) {
    iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
    ASSERT_EQ(send_some(accepted.get(), {&part, 1}).bytes, bytes.size());
  }
};

// A rank that dials the imposter, and what becomes of that peer.
PeerLife after(const std::function<void(Imposter&)>& answer, std::string& troubles) {
  SecretWorld world;
  Imposter imposter(world.addresses[1]);
  world.ranks[0] = nullptr;
  world.addresses[1] = imposter.address.text();
  world.ranks[0] = TcpTransport::create(world.options(0), world.endpoints[0], world.addresses).value();
  auto send = world.send(0, 1);
  send->send_from(kData.data(), 100, call(1));
  EXPECT_TRUE(eventually([&] { return world.ranks[0]->flush() || imposter.hear(); }));
  answer(imposter);
  PeerLife life = PeerLife::kLive;
  eventually([&] {
    imposter.hear();
    world.ranks[0]->flush();
    world.ranks[0]->pump();
    return (life = world.ranks[0]->peer_status(1).life) != PeerLife::kLive;
  });
  EXPECT_EQ(imposter.seen.find(std::string(100, '\5')), std::string::npos) << "nothing is said to who has no key";
  troubles = world.ranks[0]->troubles();
  return life;
}

TEST(TcpSecret, WhoListensInAPeersPlaceWithoutTheKeyIsNotBelieved) {
  std::string why;
  const auto goodbye = goodbye_frame(3, 3);
  EXPECT_EQ(after([&](Imposter& one) { one.say(std::string(bytes_of(goodbye)) + std::string(16, 'x')); }, why),
            PeerLife::kUnreachable);
  EXPECT_NE(why.find("rank 1 ended: TLS: the other end does not have this connection's key"), std::string::npos) << why;
  EXPECT_EQ(after([&](Imposter& one) { one.say(bytes_of(refusal_frame(Refusal::kShape))); }, why),
            PeerLife::kUnreachable);
  EXPECT_NE(why.find("rank 1 refused a connection of this rank: it has another number of"), std::string::npos) << why;
  EXPECT_EQ(after([&](Imposter& one) { one.say("HTTP/1.0 400 Bad Request\r\n\r\n"); }, why), PeerLife::kUnreachable);
  EXPECT_NE(why.find("TLS: "), std::string::npos) << why;
  // One that speaks TLS, by another key.
  const auto other_key = [](Imposter& one) {
    auto tls = TlsSession::create({.end = TlsSession::End::kServer, .key = Key{9}}).value();
    std::array<int, 2> fds{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()), 0);
    const Socket near(fds[0]);
    const Socket far(fds[1]);
    const std::string hello = one.seen.substr(sizeof(Preamble));
    iovec part{.iov_base = const_cast<char*>(hello.data()), .iov_len = hello.size()};
    send_some(far.get(), {&part, 1});
    tls->advance(near.get());
    std::array<std::byte, 4096> said{};
    const Moved moved = receive_some(far.get(), said.data(), said.size());
    ASSERT_GT(moved.bytes, 0u);
    one.say({reinterpret_cast<const char*>(said.data()), moved.bytes});
  };
  EXPECT_EQ(after(other_key, why), PeerLife::kUnreachable);
  EXPECT_NE(why.find("TLS: the other end does not have this connection's key"), std::string::npos) << why;
}

TEST(TcpSecret, AnEndThatEncryptsAndOneThatDoesNotRefuseEachOther) {
  for (const bool first : {false, true}) {
    World world(2, "127.0.0.1", kSlots, first);
    auto other = endpoint({.address = "127.0.0.1", .encrypt = !first});
    world.ranks[0] = nullptr;
    world.ranks[0] = TcpTransport::create(world.options(0), other, world.addresses).value();
    auto send = world.send(0, 1);
    send->send_from(kData.data(), 100, call(1));
    EXPECT_TRUE(eventually([&] {
      world.ranks[0]->flush();
      world.ranks[0]->pump();
      world.ranks[1]->pump();
      return world.ranks[0]->peer_status(1).life == PeerLife::kUnreachable;
    }));
    EXPECT_NE(world.ranks[0]->troubles().find("give all the same TUTTI_ENCRYPT"), std::string::npos)
        << world.ranks[0]->troubles();
    EXPECT_EQ(world.endpoints[1]->refusals().count, 1u);
  }
}

}  // namespace
}  // namespace tutti::tcp_test
