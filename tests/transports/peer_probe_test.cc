// A connection that ends without a goodbye: has the peer's process ended, or was the connection cut?
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
  EXPECT_EQ(finding_at(address), PeerProbe::Finding::kLives) << "though nobody accepts";
  listener.reset();
  EXPECT_EQ(finding_at(address), PeerProbe::Finding::kEnded);
}

// A process that ends closes one socket after the other: a connection may still be made and be reset right away.
TEST(PeerProbe, IsNotDeceivedByAListenerThatIsAboutToClose) {
  std::optional<Socket> listener = listen_on(*parse_host("127.0.0.1")).value();
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  PeerProbe probe(local_address(listener->get()), start_ns);
  EXPECT_EQ(probe.look(start_ns), PeerProbe::Finding::kNone) << "the connection is there";
  EXPECT_EQ(probe.look(start_ns + 1'000'000), PeerProbe::Finding::kNone);
  listener.reset();
  EXPECT_EQ(probe.look(start_ns + 200'000'000), PeerProbe::Finding::kEnded);
}

// Not so the listener of a rank: another process has got its port.
TEST(PeerProbe, FindsAListenerThatSpeaksFirst) {
  const Socket listener = listen_on(*parse_host("127.0.0.1")).value();
  SteadyClock clock;
  const std::int64_t start_ns = clock.now_ns();
  PeerProbe probe(local_address(listener.get()), start_ns);
  const Socket accepted(accept(listener.get(), nullptr, nullptr));
  ASSERT_EQ(write(accepted.get(), "hello", 5), 5);
  EXPECT_EQ(probe.look(start_ns), PeerProbe::Finding::kNone);
  EXPECT_EQ(probe.look(start_ns + 200'000'000), PeerProbe::Finding::kLives);
}

// A listener with a full queue drops the first packet of a connection, as a network may do. The second one follows
// after a second.
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

// A firewall that resets a connection leaves the listener alone; the end of a process does not.
TEST(PeerProbe, TellsADeadProcessFromAConnectionThatWasCut) {
  for (const bool dead : {false, true}) {
    ClearWorld world;
    auto receive = world.receive(0, 1);
    RawPeer peer(world.addresses[1]);
    peer.write(peer.preamble(world.options(1), 0));
    EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
    if (dead) {
      world.ranks[0] = nullptr;
      world.endpoints[0] = nullptr;
    }
    peer.reset();
    bool seen_to_end = false;
    EXPECT_TRUE(eventually([&] {
      world.ranks[1]->pump();
      const PeerStatus status = world.ranks[1]->peer_status(0);
      seen_to_end |= status.ended;
      return status.life == PeerLife::kLost;
    }));
    EXPECT_FALSE(seen_to_end) << "a lost connection does not prove that the process has ended";
    const std::string loss = world.ranks[1]->peer_loss(0);
    EXPECT_EQ(loss.empty(), dead) << loss;
    if (dead) continue;
    EXPECT_NE(loss.find("a connection to rank 0 ended: "), std::string::npos) << loss;
    EXPECT_NE(loss.find("something still takes connections at its port: "), std::string::npos) << loss;
    world.endpoints[0]->service();
    EXPECT_EQ(world.endpoints[0]->refusals().count, 0u) << "the probe is not a stranger's connection";
  }
}

}  // namespace
}  // namespace tutti::tcp_test
