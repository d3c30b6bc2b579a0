// Tests set-up through a rendezvous server. Ranks meet, foreign connections are refused, missing ranks are named.
#include "bootstrap/bootstrap.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/test_job.h"
#include "bootstrap/unique_id_parts.h"
#include "tests/support/patience.h"
#include "tests/support/ports.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using test::eventually;
using test::expect_words;
using test::failure_of;
using test::free_port;
using test::job;
using test::on_ranks;
using test::Rank;
using test::RawConnection;
using test::up_to;

std::int64_t ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

Listener listen_somewhere() { return Listener::open("127.0.0.1", std::vector<std::uint16_t>{0}).value(); }

// Returns how many connections wait in the queue of a listening socket to be accepted.
unsigned connections_waiting(int listening_fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  EXPECT_EQ(getsockopt(listening_fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  return info.tcpi_unacked;
}

const unsigned kLongestChildS = static_cast<unsigned>(2 * test::patience() / std::chrono::seconds(1));
constexpr int kRounds = 3;

std::string blob_of(std::int32_t rank, int round) {
  return std::string(std::size_t(round) * 2000, char('a' + rank % 26));
}

// Runs and checks kRounds rounds. Returns true if all results were right.
bool exchanges(Bootstrap& bootstrap, const RendezvousOptions& options) {
  for (int round = 0; round < kRounds; ++round) {
    const auto blobs = bootstrap.all_gather(blob_of(options.rank, round));
    EXPECT_TRUE(blobs.ok()) << "rank " << options.rank << ": " << to_string(blobs.error());
    if (!blobs.ok()) return false;
    std::vector<std::string> wanted;
    for (std::int32_t rank = 0; rank < options.size; ++rank) wanted.push_back(blob_of(rank, round));
    EXPECT_EQ(*blobs, wanted) << "rank " << options.rank << " round " << round;
  }
  return true;
}

// Joins the set-up and checks the rounds. Returns true if all results were right.
bool meets(const RendezvousOptions& options) {
  auto bootstrap = tcp_bootstrap(options);
  EXPECT_TRUE(bootstrap.ok()) << "rank " << options.rank << ": " << to_string(bootstrap.error());
  return bootstrap.ok() && exchanges(**bootstrap, options);
}

TEST(RendezvousServer, EveryRankGetsEveryBlobInEveryRound) {
  for (const std::int32_t size : {1, 2, 3, 9, 40}) {
    const std::uint16_t port = free_port();
    on_ranks(up_to(size), [&](std::int32_t rank) { EXPECT_TRUE(meets(job(rank, size, port))); });
  }
}

TEST(RendezvousServer, MeetsOnIpv6AndKnowsItsOwnAddress) {
  const std::uint16_t port = free_port();
  on_ranks(up_to(3), [&](std::int32_t rank) {
    RendezvousOptions options = job(rank, 3, port);
    options.host = "::1";
    auto bootstrap = tcp_bootstrap(options);
    ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
    EXPECT_EQ((*bootstrap)->local_address(), "::1");
  });
}

TEST(RendezvousServer, StrangersAreToldWhyAndTheRealOnesMeet) {
  const std::uint16_t port = free_port();
  std::thread root([&] { EXPECT_TRUE(meets(job(0, 3, port))); });
  RawConnection silent(port), noisy(port), endless(port);
  noisy.send_bytes(std::string(2000, 'x'));
  EXPECT_NE(noisy.receive_frame().find("this is not the Tutti protocol"), std::string::npos);
  endless.send_bytes(std::string("\4\0\0\0abcd", 8));
  EXPECT_NE(endless.receive_frame().find("this is not the Tutti protocol"), std::string::npos);
  // Joins with a wrong field, and expects a refusal with the given reason, after which the connection is closed.
  const auto refused = [&](Rank& stranger, const std::string& reason) {
    EXPECT_FALSE(stranger.join());
    EXPECT_EQ(stranger.last_message.substr(0, 1), std::string(1, '\0'));
    EXPECT_NE(stranger.last_message.find(reason), std::string::npos) << stranger.last_message << " lacks: " << reason;
    EXPECT_EQ(stranger.receive_frame(), "") << "the connection must be closed";
  };
  Rank protocol(port, 1, 3), version(port, 1, 3), other(port, 1, 3), more(port, 1, 4), high(port, 3, 3),
      low(port, -1, 3);
  protocol.hello.protocol = 77;
  refused(protocol, "protocol 5 is spoken here, not 77");
  version.rank_info.version = 9'008'007;
  refused(version, "rank 1 runs Tutti 9.8.7, the server " + wire::version_text(wire::library_version()));
  other.hello.job = wire::job_tag("Bootstrap-test");
  refused(other, "another job");
  refused(more, "rank 1 says that there are 4 ranks, rank 0 says 3");
  refused(high, "rank 3 is outside 0..2");
  refused(low, "rank -1 is outside 0..2");
  on_ranks({1, 2}, [&](std::int32_t rank) { EXPECT_TRUE(meets(job(rank, 3, port))); });
  root.join();
}

// The second process that joins as rank 2 is refused. The first one meets rank 1, which joins after the refusal.
TEST(RendezvousServer, OfTwoProcessesThatSayTheyAreRank2OneIsRefused) {
  const std::uint16_t port = free_port();
  std::atomic<int> refused = 0;
  on_ranks({0, 1, 2, 2}, [&](std::int32_t rank) {
    if (rank != 2) {
      EXPECT_TRUE(rank == 0 || eventually([&] { return refused == 1; }));
      EXPECT_TRUE(meets(job(rank, 3, port)));
      return;
    }
    auto bootstrap = tcp_bootstrap(job(2, 3, port));
    if (bootstrap.ok()) {
      EXPECT_TRUE(exchanges(**bootstrap, job(2, 3, port)));
      return;
    }
    expect_words(bootstrap.error(), "rank 2 has joined already");
    ++refused;
  });
  EXPECT_EQ(refused, 1);
}

TEST(RendezvousServer, ManySilentConnectionsKeepNobodyOut) {
  auto listener = listen_somewhere();
  const std::uint16_t port = listener.port();
  const std::int64_t never_ms = 10 * test::patience().count();
  auto server = RendezvousServer::start(std::move(listener), {.job_id = "bootstrap-test",
                                                              .key = test::key_for_tests(),
                                                              .size = 2,
                                                              .first_wait_ms = never_ms,
                                                              .handshake_wait_ms = never_ms})
                    .value();
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<RawConnection>(port));
  Rank first(port, 0, 2);
  EXPECT_TRUE(first.join()) << "the time limit of the silent connections is not over yet";
  EXPECT_TRUE(silent.front()->is_closed()) << "the oldest silent connection must be closed";
}

TEST(RendezvousServer, ASilentConnectionIsClosedWhenItsTimeIsOver) {
  EXPECT_EQ(RendezvousServerOptions{}.handshake_wait_ms, 3000) << "docs/security.md names this number";
  auto listener = listen_somewhere();
  const std::uint16_t port = listener.port();
  auto server = RendezvousServer::start(std::move(listener), {.job_id = "bootstrap-test",
                                                              .key = test::key_for_tests(),
                                                              .size = 2,
                                                              .first_wait_ms = 10 * test::patience().count(),
                                                              .handshake_wait_ms = 50})
                    .value();
  RawConnection silent(port);
  EXPECT_TRUE(silent.is_closed());
}

// Rank 0 has a short timeout, so it begins when the others have connected.
TEST(RendezvousServer, AMissingRankIsNamedToAllAndSoAreThoseWhoWereRefused) {
  auto listener = listen_somewhere();
  const std::uint16_t port = listener.port();
  const int listening_fd = listener.release();
  const milliseconds limit = test::scaled(milliseconds(1500));
  on_ranks({0, 1, 3}, [&](std::int32_t rank) {
    RendezvousOptions options = job(rank, 4, port);
    if (rank == 0) {
      EXPECT_TRUE(eventually([&] { return connections_waiting(listening_fd) == 2; }));
      options.listening_fd = listening_fd;
      options.timeout_ms = limit.count();
    }
    if (rank == 3) {
      options.job_id = "other";
      EXPECT_EQ(failure_of(options).code, ErrorCode::kRefused);
      return;
    }
    const Error error = failure_of(options);
    EXPECT_EQ(error.code, ErrorCode::kTimeout);
    EXPECT_EQ(error.rank, 2);
    expect_words(error, "rank(s) 2, 3 of 4 ");
    // The server has the same time as rank 0. If the server's thread starts late, rank 0 gives up first.
    if (error.message.find("rank 0 gave up set-up") == std::string::npos) {
      expect_words(error, "did not join within " + std::to_string(limit.count()) + " ms");
    }
    expect_words(error, "another job");
  });
  close(listening_fd);
}

// The test controls ranks 0 and 3 through raw connections. They have joined when rank 1 begins.
TEST(RendezvousServer, WhoeverGivesUpFirstIsToldWhoWasMissingAndSoAreTheOthers) {
  auto listener = listen_somewhere();
  const std::uint16_t port = listener.port();
  auto server = RendezvousServer::start(std::move(listener), {.job_id = "bootstrap-test",
                                                              .key = test::key_for_tests(),
                                                              .size = 4,
                                                              .first_wait_ms = 10 * test::patience().count()})
                    .value();
  const auto expect_right = [](const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kTimeout) << to_string(error);
    EXPECT_EQ(error.rank, 2);
    expect_words(error, "rank 1 gave up set-up; rank(s) 2 of 4 had not joined");
  };
  Rank zero(port, 0, 4), three(port, 3, 4);
  EXPECT_TRUE(zero.join());
  EXPECT_TRUE(three.join());
  RendezvousOptions options = job(1, 4, port);
  options.timeout_ms = test::scaled(milliseconds(1500)).count();  // rank 1 must have joined by then
  expect_right(failure_of(options));
  for (Rank* rank : {&zero, &three}) {
    const std::string told = rank->receive_sealed();
    ASSERT_TRUE(told.starts_with('!'));
    expect_right(wire::unpack_failure(std::string_view(told).substr(1)));
  }
}

// The set-up has already failed when a late rank completes the round. This must not end the server with an error.
TEST(RendezvousServer, TakesALateBlobAndAGoodbyeAfterTheFailure) {
  auto listener = listen_somewhere();
  const std::uint16_t port = listener.port();
  auto options = job(0, 2, port);
  options.timeout_ms = test::scaled(milliseconds(1500)).count();  // rank 1 must have joined by then
  options.listening_fd = listener.release();
  auto rank = std::make_unique<Rank>(port, 1, 2);  // connected before rank 0 begins
  std::thread late([rank = std::move(rank)] {
    EXPECT_TRUE(rank->join());
    EXPECT_TRUE(rank->receive_sealed().starts_with('!'));
    rank->send_sealed("bx");
    rank->send_sealed("q");
  });
  const Error error = failure_of(options);  // the server lives until the late rank has left
  late.join();
  close(options.listening_fd);
  EXPECT_EQ(error.code, ErrorCode::kTimeout);
  EXPECT_EQ(error.rank, 1);
}

TEST(RendezvousServer, IsLeftByTheOthersWhenItEnds) {
  const std::uint16_t port = free_port();
  const pid_t root = fork();
  if (root == 0) {
    alarm(kLongestChildS);
    auto bootstrap = tcp_bootstrap(job(0, 2, port));
    pause();
    _exit(0);
  }
  auto bootstrap = tcp_bootstrap(job(1, 2, port));
  ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
  std::thread killer([&] {  // before or during the call; the result is the same
    std::this_thread::sleep_for(milliseconds(100));
    kill(root, SIGKILL);
  });
  const auto blobs = (*bootstrap)->all_gather("x");
  ASSERT_FALSE(blobs.ok());
  EXPECT_EQ(blobs.error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(blobs.error().rank, 0);
  killer.join();
  waitpid(root, nullptr, 0);
}

// Another program or another job may listen on the derived ports. All ranks must find the server of their job.
TEST(RendezvousServer, IsFoundBehindForeignListenersOnItsPorts) {
  auto foreign = listen_somewhere();
  auto other = listen_somewhere();
  const std::vector<std::uint16_t> ports = {foreign.port(), other.port(), free_port()};
  const int foreign_fd = foreign.release();
  std::thread echo([&] {  // answers every hello with a message of another protocol
    while (true) {
      const int fd = accept(foreign_fd, nullptr, nullptr);
      if (fd < 0) return;
      EXPECT_GT(send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL), 0);
      close(fd);
    }
  });
  auto other_server = RendezvousServer::start(std::move(other), {.job_id = "another",
                                                                 .key = test::key_for_tests(),
                                                                 .size = 2,
                                                                 .first_wait_ms = 10 * test::patience().count()})
                          .value();
  on_ranks(up_to(4), [&](std::int32_t rank) {
    RendezvousOptions options = job(rank, 4, 0);
    options.ports = ports;
    if (rank == 0) std::this_thread::sleep_for(milliseconds(150));  // usually the last rank, but any order must work
    EXPECT_TRUE(meets(options));
  });
  RendezvousOptions lonely = job(1, 2, 0);
  lonely.ports = {ports[0], ports[1]};
  lonely.timeout_ms = test::scaled(milliseconds(2000)).count();
  const Error error = failure_of(lonely);
  expect_words(error, "what listens on port " + std::to_string(ports[0]) + " is not Tutti");
  expect_words(error, "on port " + std::to_string(ports[1]) + " another job of Tutti is being set up");
  shutdown(foreign_fd, SHUT_RDWR);
  echo.join();
  close(foreign_fd);
}

TEST(RendezvousServer, WithoutAnyFreePortRankZeroSaysSo) {
  const auto taken = listen_somewhere();
  const Error error = failure_of(job(0, 2, taken.port()));
  EXPECT_EQ(error.code, ErrorCode::kSystem);
  expect_words(error, "rank 0 cannot listen on 127.0.0.1:" + std::to_string(taken.port()));
}

RendezvousOptions by_id(std::int32_t rank, std::int32_t size, const UniqueId& id) {
  RendezvousOptions options;
  options.rank = rank;
  options.size = size;
  options.unique_id = id;
  options.timeout_ms = test::patience().count();
  return options;
}

TEST(UniqueId, SeveralServeAtTheSameTimeEachOnce) {
  const std::vector<UniqueId> ids = {UniqueId::create().value(), UniqueId::create().value(),
                                     UniqueId::create().value()};
  on_ranks(up_to(9), [&](std::int32_t i) { EXPECT_TRUE(meets(by_id(i / 3, 3, ids[std::size_t(i % 3)]))); });
  const std::uint16_t port = unpack_unique_id(ids[0]).value().port;
  // After the end of the server, another program may get its port, because the kernel had chosen it.
  const bool closed = eventually([&] { return !test::port_is_open(port); });
  RendezvousOptions again = by_id(0, 3, ids[0]);
  const auto start = Clock::now();
  const Error error = failure_of(again);
  const bool another = !closed || error.message.find("this is another job") != std::string::npos;
  if (!another) expect_words(error, "an id serves once");
  EXPECT_LT(ms_since(start), again.timeout_ms) << "the error must not take until the deadline";
}

TEST(UniqueId, TheMakerNeedsToBeNoRank) {
  std::vector<pid_t> children;
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  for (std::int32_t rank = 0; rank < 3; ++rank) {  // before any thread starts, because a fork may copy a locked mutex
    const pid_t child = fork();
    if (child == 0) {
      alarm(kLongestChildS);
      std::array<char, 256> text{};
      if (read(pipe_ends[0], text.data(), text.size()) != ssize_t{text.size()}) _exit(2);
      const auto id = UniqueId::from_text({text.data(), text.size()});
      _exit(id.ok() && meets(by_id(rank, 3, *id)) ? 0 : 1);
    }
    children.push_back(child);
  }
  const std::string text = UniqueId::create().value().to_text();
  for (std::size_t i = 0; i < children.size(); ++i) {  // a write of up to PIPE_BUF bytes is atomic
    EXPECT_EQ(write(pipe_ends[1], text.data(), text.size()), ssize_t(text.size()));
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  for (const int end : pipe_ends) close(end);
}

TEST(UniqueId, TheFirstToComeSaysHowManyThereAre) {
  const UniqueId id = UniqueId::create().value();
  const UniqueIdParts parts = unpack_unique_id(id).value();
  test::RawRank first(parts.port, 1, 2, parts.job_id, parts.key);
  EXPECT_TRUE(first.join());
  expect_words(failure_of(by_id(2, 3, id)), "rank 2 says that there are 3 ranks, the first to come said 2");
  std::thread root([&] { EXPECT_TRUE(meets(by_id(0, 2, id))); });
  first.send_sealed("b");  // the round that is part of the set-up
  EXPECT_TRUE(first.receive_sealed().starts_with('+'));
  for (int round = 0; round < kRounds; ++round) {
    first.send_sealed("b" + blob_of(1, round));
    EXPECT_TRUE(first.receive_sealed().starts_with('+'));
  }
  root.join();
}

TEST(UniqueId, EndsWhenNobodyComes) {
  const UniqueId id = UniqueId::create({.timeout = milliseconds(50)}).value();
  EXPECT_TRUE(eventually([&] { return !test::port_is_open(unpack_unique_id(id)->port); }));
  const UniqueIdParts parts = unpack_unique_id(id).value();
  expect_words(failure_of(by_id(0, 2, id)),
               "nobody serves the unique id at " + parts.address + ":" + std::to_string(parts.port) + ":");
}

}  // namespace
}  // namespace tutti
