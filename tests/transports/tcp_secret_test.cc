// Tests of TcpTransport with TLS: it delivers and reports the same as without encryption, and it does not trust
// replies from processes without the job's key.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <thread>

#include "tests/transports/tcp_support.h"

namespace tutti::tcp_test {
namespace {

struct EncryptedJob : TestJob {
  explicit EncryptedJob(std::uint32_t count = 2) : TestJob(count, "127.0.0.1", kSlots, true) {}
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
    EncryptedJob job;
    auto send = job.send(0, 1);
    auto receive = job.receive(0, 1);
    job.ranks[0]->enter_call(call(1), {});
    for (int i = 0; i < 3; ++i) send->send_from(kData.data(), 20000, call(1));
    ASSERT_TRUE(job.flushed(0));
    job.ranks[0]->leave_call(call(1), std::nullopt);
    if (dies) {
      // Like a process that is killed: all of its sockets are closed without a close frame.
      for (int fd = 3; fd < 1024; ++fd) {
        sockaddr_in local{};
        sockaddr_in peer{};
        socklen_t size = sizeof(local);
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0 || local.sin_family != AF_INET) continue;
        size = sizeof(peer);
        if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
        const std::uint16_t port = PeerAddress::parse(job.addresses[1], 1)->socket.port();
        if (ntohs(peer.sin_port) == port) shutdown(fd, SHUT_RDWR);
      }
    } else {
      send = nullptr;
      job.ranks[0] = nullptr;
    }
    const PeerLife end = dies ? PeerLife::kLost : PeerLife::kLeft;
    if (!dies) {
      EXPECT_EQ(job.life_of(1, 0, end), end) << "the status must be right even before the data has been read";
      EXPECT_TRUE(job.ranks[1]->peer_has_left(0, 1));
    }
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage) << i;
      EXPECT_EQ(receive->front().bytes, 20000u);
      EXPECT_EQ(std::memcmp(receive->front().data, kData.data(), 20000), 0);
      receive->release();
    }
    EXPECT_EQ(job.life_of(1, 0, end), end);
  }
}

TEST(TcpSecret, WhoComesLateIsToldSoInClearAndBelievesIt) {
  EncryptedJob job;
  job.ranks[1]->enter_call(call(7), {});
  job.ranks[1]->leave_call(call(7), std::nullopt);
  job.ranks[1] = nullptr;
  auto send = job.send(0, 1);
  send->send_from(kData.data(), 100, call(8));
  EXPECT_TRUE(eventually([&] {
    job.endpoints[1]->service();
    job.ranks[0]->flush();
    job.ranks[0]->pump();
    return job.ranks[0]->peer_status(1).life == PeerLife::kLeft;
  }));
  EXPECT_TRUE(job.ranks[0]->peer_has_left(1, 7));
}

// A clock that advances by 1 ms whenever it is read, until `limit_ns` have passed. Then it stands still, and a wait
// that needs more time never ends.
class CountingClock final : public Clock {
 public:
  explicit CountingClock(std::int64_t limit_ns) : latest_ns_(kStartNs + limit_ns) {}
  std::int64_t now_ns() override {
    if (now_ns_ < latest_ns_) now_ns_ += 1'000'000;
    return now_ns_;
  }
  bool stands_still() const { return now_ns_ >= latest_ns_; }

 private:
  static constexpr std::int64_t kStartNs = 1'000'000'000;
  const std::int64_t latest_ns_;
  std::atomic<std::int64_t> now_ns_ = kStartNs;
};

// Rank 0 has this clock, and has entered call 1.
struct JobWithCountingClock : EncryptedJob {
  explicit JobWithCountingClock(CountingClock& clock) {
    TcpTransportOptions own = options(0);
    own.clock = &clock;
    ranks[0] = nullptr;
    ranks[0] = TcpTransport::create(own, endpoints[0], addresses).value();
    ranks[0]->enter_call(call(1), {});
  }
};

// After a failure, nothing drives a rank that waits for the others to shrink, so leave_call() must send the failure
// itself. The peer answers after 0.9 s, as on a machine whose processors are busy.
TEST(TcpSecret, AFailureReachesAPeerThatAnswersLate) {
  CountingClock clock(900'000'000);  // must outlive the ranks
  JobWithCountingClock job(clock);
  std::atomic<bool> ended = false;
  std::thread peer([&] {
    eventually([&] { return ended || clock.stands_still(); });
    eventually([&] { return job.ranks[1]->pump(), ended && job.ranks[1]->peer_failure(0, 1).has_value(); });
  });
  const CallFailure failure{.code = ErrorCode::kPeerLost, .culprit = -1};
  job.ranks[0]->leave_call(call(1), failure);
  ended = true;
  peer.join();
  EXPECT_EQ(job.ranks[1]->peer_failure(0, 1), failure);
}

// Rank 1 is the culprit and does not answer. leave_call() waits 0.1 s for it, and not at all the second time.
TEST(TcpSecret, LeaveCallWaitsForTheCulpritOnlyOnceAndNotForLong) {
  CountingClock clock(500'000'000);  // must outlive the ranks
  JobWithCountingClock job(clock);
  const CallFailure failure{.code = ErrorCode::kTimeout, .culprit = 1};
  const auto duration_of_leaving = [&](std::uint64_t sequence) {
    const std::int64_t begin_ns = clock.now_ns();
    job.ranks[0]->leave_call(call(sequence), failure);
    return clock.now_ns() - begin_ns;
  };
  const std::int64_t first_ns = duration_of_leaving(1);
  EXPECT_GE(first_ns, 100'000'000);
  EXPECT_LT(first_ns, 200'000'000);
  job.ranks[0]->enter_call(call(2), {});
  EXPECT_LT(duration_of_leaving(2), 50'000'000);
  // Rank 1 has not run yet, so it receives the failures only now.
  EXPECT_TRUE(eventually([&] {
    for (auto& rank : job.ranks) rank->pump();
    return job.ranks[1]->peer_failure(0, 2).has_value();
  }));
}

// Rank 1 does not answer. With longer limits these waits would never end.
TEST(TcpSecret, LeaveCallWaitsASecondForOthersAndAnAbortIsShort) {
  CountingClock clock(1'150'000'000);  // must outlive the ranks
  JobWithCountingClock job(clock);
  job.ranks[0]->announce_abort();
  EXPECT_FALSE(clock.stands_still());
  job.ranks[0]->leave_call(call(1), CallFailure{.code = ErrorCode::kAborted, .culprit = -1});
  EXPECT_TRUE(eventually([&] {
    for (auto& rank : job.ranks) rank->pump();
    return job.ranks[1]->peer_failure(0, 1).has_value();
  }));
}

// A process that listens at a peer's address, records the first bytes that it receives, and answers with `answer`.
struct Imposter {
  Socket listener, accepted;
  std::string seen;
  PeerAddress address;

  explicit Imposter(const std::string& of) : address(PeerAddress::parse(of, 1).value()) {
    SocketAddress anywhere = parse_host("127.0.0.1").value();
    listener = listen_on(anywhere).value();
    address.socket = local_address(listener.get());
  }
  bool read_some() {
    if (!accepted.is_open()) {
      accepted = Socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    }
    std::array<char, 4096> some{};
    if (!accepted.is_open()) return false;
    const Moved moved = receive_some(accepted.get(), reinterpret_cast<std::byte*>(some.data()), some.size());
    seen.append(some.data(), moved.bytes);
    return seen.size() > sizeof(Preamble);
  }
  void write_text(std::string_view bytes) {
    iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
    ASSERT_EQ(send_some(accepted.get(), {&part, 1}).bytes, bytes.size());
  }
};

// Connects a rank to the imposter. Returns the resulting status of that peer, and the rank's error messages.
PeerLife after(const std::function<void(Imposter&)>& answer, std::string& troubles) {
  EncryptedJob job;
  Imposter imposter(job.addresses[1]);
  job.ranks[0] = nullptr;
  job.addresses[1] = imposter.address.text();
  job.ranks[0] = TcpTransport::create(job.options(0), job.endpoints[0], job.addresses).value();
  auto send = job.send(0, 1);
  send->send_from(kData.data(), 100, call(1));
  EXPECT_TRUE(eventually([&] { return job.ranks[0]->flush() || imposter.read_some(); }));
  answer(imposter);
  PeerLife life = PeerLife::kLive;
  eventually([&] {
    imposter.read_some();
    job.ranks[0]->flush();
    job.ranks[0]->pump();
    return (life = job.ranks[0]->peer_status(1).life) != PeerLife::kLive;
  });
  EXPECT_EQ(imposter.seen.find(std::string(100, '\5')), std::string::npos)
      << "no data may be sent to a process that does not have the key";
  troubles = job.ranks[0]->troubles();
  return life;
}

TEST(TcpSecret, WhoListensInAPeersPlaceWithoutTheKeyIsNotBelieved) {
  std::string why;
  const auto goodbye = make_close_frame(3, 3);
  EXPECT_EQ(after([&](Imposter& one) { one.write_text(std::string(bytes_of(goodbye)) + std::string(16, 'x')); }, why),
            PeerLife::kUnreachable);
  EXPECT_NE(why.find("rank 1 ended: TLS: the other end does not have this connection's key"), std::string::npos) << why;
  EXPECT_EQ(after([&](Imposter& one) { one.write_text(bytes_of(refusal_frame(Refusal::kShape))); }, why),
            PeerLife::kUnreachable);
  EXPECT_NE(why.find("rank 1 refused a connection of this rank: its number of ranks"), std::string::npos) << why;
  EXPECT_EQ(after([&](Imposter& one) { one.write_text("HTTP/1.0 400 Bad Request\r\n\r\n"); }, why),
            PeerLife::kUnreachable);
  EXPECT_NE(why.find("TLS: "), std::string::npos) << why;
  // An imposter that uses TLS with another key.
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
    std::array<std::byte, 4096> reply{};
    const Moved moved = receive_some(far.get(), reply.data(), reply.size());
    ASSERT_GT(moved.bytes, 0u);
    one.write_text({reinterpret_cast<const char*>(reply.data()), moved.bytes});
  };
  EXPECT_EQ(after(other_key, why), PeerLife::kUnreachable);
  EXPECT_NE(why.find("TLS: the other end does not have this connection's key"), std::string::npos) << why;
}

TEST(TcpSecret, AnEndThatEncryptsAndOneThatDoesNotRefuseEachOther) {
  for (const bool first : {false, true}) {
    TestJob job(2, "127.0.0.1", kSlots, first);
    auto other = endpoint({.address = "127.0.0.1", .encrypt = !first});
    job.ranks[0] = nullptr;
    job.ranks[0] = TcpTransport::create(job.options(0), other, job.addresses).value();
    auto send = job.send(0, 1);
    send->send_from(kData.data(), 100, call(1));
    EXPECT_TRUE(eventually([&] {
      job.ranks[0]->flush();
      job.ranks[0]->pump();
      job.ranks[1]->pump();
      return job.ranks[0]->peer_status(1).life == PeerLife::kUnreachable;
    }));
    EXPECT_NE(job.ranks[0]->troubles().find("give all the same TUTTI_ENCRYPT"), std::string::npos)
        << job.ranks[0]->troubles();
    EXPECT_EQ(job.endpoints[1]->refusals().count, 1u);
  }
}

constexpr std::int64_t kHandshakeTimeoutNs = 20'000'000'000;
constexpr std::int64_t kStepNs = 2'000'000'000;  // so short that the endpoint does not count as unserved

// A connection of a process that has the key, which sends its preamble but never its part of the TLS handshake.
RawPeer silent_after_preamble(const TcpEndpoint& port) {
  RawPeer peer(port.address());
  Preamble preamble = peer.preamble({.rank = 1, .ranks = 2, .communicator = 5}, 0);
  preamble.encrypted = 1;
  peer.write(preamble);
  EXPECT_TRUE(eventually([&] {
    int unacknowledged = 0;
    return ioctl(peer.fd(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
  })) << "the kernel of the endpoint must receive the preamble";
  return peer;
}

void serve(TcpEndpoint& port, HandClock& clock, std::int64_t ns) {
  for (std::int64_t passed_ns = 0; passed_ns < ns; passed_ns += kStepNs) {
    clock.advance(kStepNs);
    port.service();
  }
}

TEST(TcpSecret, AHandshakeThatStopsIsRefusedAfterALongTime) {
  EXPECT_EQ(TcpEndpointOptions{}.handshake_timeout_ns, 600'000'000'000) << "docs/security.md names this number";
  HandClock clock;
  auto port =
      endpoint({.address = "127.0.0.1", .clock = &clock, .handshake_timeout_ns = kHandshakeTimeoutNs, .encrypt = true});
  RawPeer silent = silent_after_preamble(*port);
  port->service();
  serve(*port, clock, kHandshakeTimeoutNs);
  EXPECT_EQ(port->refusals().count, 0u);
  clock.advance(10 * kHandshakeTimeoutNs);  // nobody calls service() meanwhile, so the connection gets its time again
  port->service();
  serve(*port, clock, kHandshakeTimeoutNs);
  EXPECT_EQ(port->refusals().count, 0u);
  serve(*port, clock, kStepNs);
  EXPECT_EQ(port->refusals().count, 1u);
  EXPECT_NE(port->refusals().last.find("its TLS handshake in time"), std::string::npos) << port->refusals().last;
  EXPECT_EQ(silent.reply().kind, Reply::Kind::kEnded);
}

TEST(TcpSecret, OnlySoManyHandshakesAreBegunAtATime) {
  EXPECT_EQ(TcpEndpointOptions{}.most_handshakes, 4096u) << "docs/security.md names this number";
  HandClock clock;
  auto port = endpoint({.address = "127.0.0.1",
                        .clock = &clock,
                        .handshake_timeout_ns = kHandshakeTimeoutNs,
                        .most_handshakes = 2,
                        .encrypt = true});
  std::vector<RawPeer> peers;
  for (int i = 0; i < 3; ++i) peers.push_back(silent_after_preamble(*port));
  port->service();
  serve(*port, clock, kHandshakeTimeoutNs + kStepNs);
  EXPECT_EQ(port->refusals().count, 2u) << "the third connection is accepted only now";
  serve(*port, clock, kHandshakeTimeoutNs);
  EXPECT_EQ(port->refusals().count, 2u);
  serve(*port, clock, kStepNs);
  EXPECT_EQ(port->refusals().count, 3u);
}

}  // namespace
}  // namespace tutti::tcp_test
