// Tests a set-up server that listens on several addresses, because the name of its machine has several.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/raw_rank.h"
#include "bootstrap/rendezvous_server.h"
#include "tests/support/patience.h"
#include "tests/support/ports.h"

namespace tutti {
namespace {

constexpr std::string_view kListenerJob = "listener-test";

// Sends rank 0's messages for joining and for one round of set-up. The test cannot call tcp_bootstrap() for rank 0,
// because that would start a second server.
void join_as_rank_0(std::uint16_t port) {
  test::RawRank by_hand(port, 0, 4, kListenerJob);
  EXPECT_TRUE(by_hand.join());
  by_hand.send_sealed("b");
  EXPECT_EQ(by_hand.receive_sealed().substr(0, 1), "+");
}

// The first address belongs to another machine, so listening there fails. The server uses the other three.
TEST(Listener, MeetsRanksOnEachOfSeveralAddresses) {
  const std::vector<std::string> addresses = {"198.51.100.7", "127.0.0.1", "127.0.0.2", "127.0.0.3"};
  auto listeners = Listener::open_all(addresses, std::vector<std::uint16_t>{0});
  ASSERT_TRUE(listeners.ok()) << to_string(listeners.error());
  ASSERT_EQ(listeners->size(), 3u);
  const std::uint16_t port = listeners->front().port();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*listeners)[i].port(), port);
    EXPECT_EQ((*listeners)[i].address(), addresses[i + 1]);
  }
  auto server = RendezvousServer::start(std::move(*listeners), {.job_id = std::string(kListenerJob),
                                                                .key = test::key_for_tests(),
                                                                .size = 4,
                                                                .first_wait_ms = test::patience().count()})
                    .value();
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 1; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      RendezvousOptions options;
      options.rank = rank;
      options.size = 4;
      options.host = addresses[static_cast<std::size_t>(rank)];
      options.ports = {port};
      options.job_id = kListenerJob;
      options.key = test::key_for_tests();
      options.timeout_ms = test::patience().count();
      const auto bootstrap = tcp_bootstrap(options);
      EXPECT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
    });
  }
  join_as_rank_0(port);
  for (std::thread& rank : ranks) rank.join();
}

TEST(Listener, TakesThePortThatIsFreeOnEveryAddress) {
  const std::uint16_t first = test::free_port(), second = test::free_port();
  const auto taken = Listener::open("127.0.0.2", {&first, 1});
  ASSERT_TRUE(taken.ok());
  const std::vector<std::string> addresses = {"127.0.0.1", "127.0.0.2"};
  auto both = Listener::open_all(addresses, std::vector<std::uint16_t>{first, second});
  ASSERT_TRUE(both.ok());
  ASSERT_EQ(both->size(), 2u);
  EXPECT_EQ(both->front().port(), second);
  auto one = Listener::open_all(addresses, {&first, 1});
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().address(), "127.0.0.1");
  EXPECT_FALSE(Listener::open_all({"198.51.100.7", "198.51.100.8"}, {&first, 1}).ok());
}

// A wrapper script closed the launcher's socket, and the program reused its descriptor number for a server of its
// own.
TEST(Listener, LeavesASocketOfAnotherPortToTheProgram) {
  const std::uint16_t wanted = test::free_port(), other = test::free_port();
  auto server = Listener::open("127.0.0.1", {&other, 1});
  ASSERT_TRUE(server.ok());
  const std::uint16_t port = server->port();
  const int fd = server->release();
  const auto listener = Listener::inherit_or_open(fd, wanted, "127.0.0.1", {&wanted, 1});
  ASSERT_TRUE(listener.ok()) << to_string(listener.error());
  EXPECT_EQ(listener->port(), wanted);
  const auto taken = Listener::inherit_or_open(fd, wanted, "198.51.100.7", {&wanted, 1});
  ASSERT_FALSE(taken.ok());
  EXPECT_NE(taken.error().message.find("is bound to port " + std::to_string(port)), std::string::npos)
      << taken.error().message;
  EXPECT_TRUE(Listener::inherit_or_open(fd, port, "127.0.0.1", {&port, 1}).ok());
  EXPECT_TRUE(Listener::inherit_or_open(fd, 0, "127.0.0.1", {&wanted, 1}).ok());
  close(fd);
}

TEST(Listener, RefusesTheWildcardAddress) {
  constexpr std::array<std::uint16_t, 1> kAnyPort{0};
  for (const char* wildcard : {"0.0.0.0", "::"}) {
    const auto listener = Listener::open(wildcard, kAnyPort);
    ASSERT_FALSE(listener.ok()) << wildcard;
    EXPECT_EQ(listener.error().code, ErrorCode::kConfig);
    EXPECT_NE(listener.error().message.find("every network of this machine"), std::string::npos);
  }
}

}  // namespace
}  // namespace tutti
