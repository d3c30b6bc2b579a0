// Tests of PeerProbe, which is used when a connection ends without a close frame. It finds out whether the peer's
// process has ended or only the connection was cut.
#include "transports/tcp/peer_probe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "tcp_support.h"

namespace tutti::tcp_test {
namespace {

PeerProbe::Finding finding_at(const SocketAddress& address) {
  SteadyClock clock;
  PeerProbe probe(address, clock.now_ns());
  PeerProbe::Finding finding = PeerProbe::Finding::kNone;
  EXPECT_TRUE(eventually([&] { return (finding = probe.look(clock.now_ns())) != PeerProbe::Finding::kNone; }));
  return finding;
}

TEST(PeerProbe, FindsWhetherSomebodyListens) {
  std::optional<Socket> listener = listen_on(*parse_host("127.0.0.1")).value();
  const SocketAddress address = local_address(listener->get());
  EXPECT_EQ(finding_at(address), PeerProbe::Finding::kAccepts) << "the port is open although no connection is accepted";
  listener.reset();
  EXPECT_EQ(finding_at(address), PeerProbe::Finding::kEnded);
}

// A process that ends closes its sockets one after the other. So a connection may still be accepted and then be
// reset immediately.
TEST(PeerProbe, IsNotDeceivedByAListenerThatIsAboutToClose) {
  std::optional<Socket> listener = listen_on(*parse_host("127.0.0.1")).value();
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  PeerProbe probe(local_address(listener->get()), start_ns);
  EXPECT_EQ(probe.look(start_ns), PeerProbe::Finding::kNone) << "the connection succeeds, but it may be reset soon";
  EXPECT_EQ(probe.look(start_ns + 1'000'000), PeerProbe::Finding::kNone);
  listener.reset();
  EXPECT_EQ(probe.look(start_ns + 200'000'000), PeerProbe::Finding::kEnded);
}

// A rank's listener waits for the first bytes of the other side. One that sends first belongs to another process,
// which has got the rank's port.
TEST(PeerProbe, FindsAListenerThatSpeaksFirst) {
  const Socket listener = listen_on(*parse_host("127.0.0.1")).value();
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  PeerProbe probe(local_address(listener.get()), start_ns);
  const Socket accepted(accept(listener.get(), nullptr, nullptr));
  ASSERT_EQ(write(accepted.get(), "hello", 5), 5);
  EXPECT_EQ(probe.look(start_ns), PeerProbe::Finding::kNone);
  EXPECT_EQ(probe.look(start_ns + 200'000'000), PeerProbe::Finding::kAccepts);
}

// A listener with a full queue drops the first packet of a connection, as a lossy network may do. The system sends
// the second packet one second later.
TEST(PeerProbe, WaitsForTheAnswerToASecondPacket) {
  const Socket listener = listen_on(*parse_host("127.0.0.1")).value();
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const SocketAddress address = local_address(listener.get());
  std::vector<Socket> queue;
  for (int i = 0; i < 3; ++i) {
    int error = 0;
    queue.push_back(try_to_connect(address, error));
    ASSERT_EQ(error, 0);
  }
  PeerProbe probe(address, 0);
  EXPECT_EQ(probe.look(0), PeerProbe::Finding::kNone);
  EXPECT_EQ(probe.look(2'900'000'000), PeerProbe::Finding::kNone);
  EXPECT_EQ(probe.look(3'000'000'000), PeerProbe::Finding::kSilence);
}

// A firewall that resets a connection does not close the listener. The end of the peer's process does.
TEST(PeerProbe, TellsADeadProcessFromAConnectionThatWasCut) {
  for (const bool dead : {false, true}) {
    PlaintextJob job;
    auto receive = job.receive(0, 1);
    RawPeer peer(job.addresses[1]);
    peer.write(peer.preamble(job.options(1), 0));
    EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
    if (dead) {
      job.ranks[0] = nullptr;
      job.endpoints[0] = nullptr;
    }
    peer.reset();
    bool seen_to_end = false;
    EXPECT_TRUE(eventually([&] {
      job.ranks[1]->pump();
      const PeerStatus status = job.ranks[1]->peer_status(0);
      seen_to_end |= status.ended;
      return status.life == PeerLife::kLost;
    }));
    EXPECT_FALSE(seen_to_end) << "a lost connection does not prove that the process has ended";
    const std::string loss = job.ranks[1]->peer_loss(0);
    EXPECT_EQ(loss.empty(), dead) << loss;
    if (dead) continue;
    EXPECT_NE(loss.find("a connection to rank 0 ended: "), std::string::npos) << loss;
    EXPECT_NE(loss.find("something still takes connections at its port: "), std::string::npos) << loss;
    job.endpoints[0]->service();
    EXPECT_EQ(job.endpoints[0]->refusals().count, 0u) << "the probe must not be counted as a refused connection";
  }
}

}  // namespace
}  // namespace tutti::tcp_test
