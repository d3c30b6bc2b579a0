// The hub and its clients: all meet, strangers do not, and whoever is missing, dead or gives up is named to all others.
#include "runtime/bootstrap.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/bootstrap_wire.h"
#include "runtime/raw_rank.h"
#include "runtime/rendezvous_hub.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Blobs = std::vector<std::string>;

std::int64_t ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

// A port that was free a moment ago.
std::uint16_t free_port(const char* address = "127.0.0.1") {
  return Listener::open(address, std::vector<std::uint16_t>{0}).value().port();
}

RendezvousOptions job(std::int32_t rank, std::int32_t size, std::uint16_t port) {
  RendezvousOptions options;
  options.rank = rank;
  options.size = size;
  options.host = "127.0.0.1";
  options.ports = {port};
  options.job_id = "bootstrap-test";
  options.key = test::key_for_tests();
  options.timeout_ms = 20'000;
  return options;
}

// body(rank) in one thread for each.
void on_ranks(const std::vector<std::int32_t>& ranks, const std::function<void(std::int32_t)>& body) {
  std::vector<std::thread> threads;
  for (const std::int32_t rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::int32_t> up_to(std::int32_t size) {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

// Meets, and checks `rounds` rounds. True: all was right.
bool meets(const RendezvousOptions& options, int rounds = 3) {
  auto bootstrap = tcp_bootstrap(options);
  EXPECT_TRUE(bootstrap.ok()) << "rank " << options.rank << ": " << to_string(bootstrap.error());
  if (!bootstrap.ok()) return false;
  for (int round = 0; round < rounds; ++round) {
    const auto blob_of = [&](std::int32_t rank) {
      return std::string(std::size_t(round) * 2000, char('a' + rank % 26));
    };
    const auto blobs = (*bootstrap)->all_gather(blob_of(options.rank));
    EXPECT_TRUE(blobs.ok()) << "rank " << options.rank << ": " << to_string(blobs.error());
    if (!blobs.ok()) return false;
    Blobs wanted;
    for (std::int32_t rank = 0; rank < options.size; ++rank) wanted.push_back(blob_of(rank));
    EXPECT_EQ(*blobs, wanted) << "rank " << options.rank << " round " << round;
  }
  return true;
}

Error failure_of(const RendezvousOptions& options) {
  auto bootstrap = tcp_bootstrap(options);
  EXPECT_FALSE(bootstrap.ok()) << "rank " << options.rank;
  return bootstrap.ok() ? Error{} : bootstrap.error();
}

void expect_words(const Error& error, const std::string& words) {
  EXPECT_NE(error.message.find(words), std::string::npos) << "\"" << words << "\" is not in: " << to_string(error);
}

using test::Raw;

class Rank : public test::RawRank {
 public:
  Rank(std::uint16_t port, std::int32_t rank, std::int32_t size) : RawRank(port, rank, size, "bootstrap-test") {}
};

TEST(Hub, EveryRankGetsEveryBlobInEveryRound) {
  for (const std::int32_t size : {1, 2, 3, 9, 40}) {
    const std::uint16_t port = free_port();
    on_ranks(up_to(size), [&](std::int32_t rank) { EXPECT_TRUE(meets(job(rank, size, port))); });
  }
}

TEST(Hub, MeetsOnIpv6AndKnowsItsOwnAddress) {
  const std::uint16_t port = free_port("::1");
  on_ranks(up_to(3), [&](std::int32_t rank) {
    RendezvousOptions options = job(rank, 3, port);
    options.host = "::1";
    auto bootstrap = tcp_bootstrap(options);
    ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
    EXPECT_EQ((*bootstrap)->local_address(), "::1");
  });
}

TEST(Hub, StrangersAreToldWhyAndTheRealOnesMeet) {
  const std::uint16_t port = free_port();
  std::thread root([&] { EXPECT_TRUE(meets(job(0, 3, port))); });
  Raw silent(port), noisy(port), endless(port);
  noisy.say(std::string(2000, 'x'));
  EXPECT_NE(noisy.hear().find("this is not the Tutti protocol"), std::string::npos);
  endless.say(std::string("\4\0\0\0abcd", 8));
  EXPECT_NE(endless.hear().find("this is not the Tutti protocol"), std::string::npos);
  // Before it has proved anything, and after.
  const auto refused = [&](Rank& stranger, const std::string& reason) {
    EXPECT_FALSE(stranger.join());
    EXPECT_EQ(stranger.heard.substr(0, 1), std::string(1, '\0'));
    EXPECT_NE(stranger.heard.find(reason), std::string::npos) << stranger.heard << " lacks: " << reason;
    EXPECT_EQ(stranger.hear(), "") << "and the connection is closed";
  };
  Rank protocol(port, 1, 3), version(port, 1, 3), other(port, 1, 3), more(port, 1, 4), high(port, 3, 3),
      low(port, -1, 3);
  protocol.hello.protocol = 77;
  refused(protocol, "protocol 4 is spoken here, not 77");
  version.introduction.version = 9'008'007;
  refused(version, "rank 1 runs Tutti 9.8.7, the hub " + wire::version_text(wire::library_version()));
  other.hello.job = wire::job_tag("Bootstrap-test");
  refused(other, "another job");
  refused(more, "rank 1 says that there are 4 ranks, rank 0 says 3");
  refused(high, "rank 3 is outside 0..2");
  refused(low, "rank -1 is outside 0..2");
  {
    std::thread second([&] { EXPECT_TRUE(meets(job(2, 3, port))); });
    std::this_thread::sleep_for(milliseconds(100));
    expect_words(failure_of(job(2, 3, port)), "rank 2 has joined already");
    std::thread first([&] { EXPECT_TRUE(meets(job(1, 3, port))); });
    first.join();
    second.join();
  }
  root.join();
}

TEST(Hub, ManySilentConnectionsKeepNobodyOut) {
  auto listener = Listener::open("127.0.0.1", std::vector<std::uint16_t>{0}).value();
  const std::uint16_t port = listener.port();
  auto hub = RendezvousHub::start(std::move(listener), {.job_id = "bootstrap-test",
                                                        .key = test::key_for_tests(),
                                                        .size = 2,
                                                        .first_patience_ms = 20'000,
                                                        .hello_patience_ms = 20'000})
                 .value();
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Raw>(port));
  Rank first(port, 0, 2);
  EXPECT_TRUE(first.join()) << "the patience of the silent ones is not over yet";
  const auto start = Clock::now();
  EXPECT_EQ(silent.front()->hear(), "");
  EXPECT_LT(ms_since(start), 10'000) << "the oldest has made room";
}

TEST(Hub, ARankThatDiesDuringSetUpIsNamedToAllAtOnce) {
  for (const bool all_had_come : {false, true}) {
    const std::uint16_t port = free_port();
    std::mutex mutex;
    Clock::time_point died;
    on_ranks({0, 1, 3, 2}, [&](std::int32_t rank) {
      if (rank == 2) {
        Rank dying(port, 2, 4);
        EXPECT_TRUE(dying.join());
        if (all_had_come) {
          dying.say_sealed("b");
          EXPECT_EQ(dying.hear_sealed().substr(0, 1), "+");
        }
        std::this_thread::sleep_for(milliseconds(100));
        const std::lock_guard lock(mutex);
        died = Clock::now();
        return;
      }
      if (rank == 3 && !all_had_come) return;
      auto bootstrap = tcp_bootstrap(job(rank, 4, port));
      Error error = bootstrap.ok() ? Error{} : bootstrap.error();
      if (bootstrap.ok()) {
        const auto blobs = (*bootstrap)->all_gather("x");
        ASSERT_FALSE(blobs.ok());
        error = blobs.error();
      }
      EXPECT_EQ(bootstrap.ok(), all_had_come);
      EXPECT_EQ(error.code, ErrorCode::kPeerLost) << to_string(error);
      EXPECT_EQ(error.rank, 2);
      expect_words(error, "rank 2 ended during set-up");
      if (!all_had_come) expect_words(error, "rank(s) 3 of 4 had not joined");
      const std::lock_guard lock(mutex);
      EXPECT_LT(ms_since(died), 10'000);
    });
  }
}

TEST(Hub, AMissingRankIsNamedToAllAndSoAreThoseWhoWereRefused) {
  const std::uint16_t port = free_port();
  on_ranks({0, 1, 3}, [&](std::int32_t rank) {
    RendezvousOptions options = job(rank, 4, port);
    if (rank == 0) options.timeout_ms = 600;
    if (rank == 3) {
      options.job_id = "other";
      EXPECT_EQ(failure_of(options).code, ErrorCode::kRefused);
      return;
    }
    const Error error = failure_of(options);
    EXPECT_EQ(error.code, ErrorCode::kTimeout);
    EXPECT_EQ(error.rank, 2);
    expect_words(error, "rank(s) 2, 3 of 4 did not join within 600 ms");
    expect_words(error, "another job");
  });
}

TEST(Hub, WhoeverGivesUpFirstIsToldWhoWasMissingAndSoAreTheOthers) {
  const std::uint16_t port = free_port();
  const auto start = Clock::now();
  on_ranks({0, 1, 3}, [&](std::int32_t rank) {
    RendezvousOptions options = job(rank, 4, port);
    if (rank == 1) options.timeout_ms = 300;
    const Error error = failure_of(options);
    EXPECT_EQ(error.code, ErrorCode::kTimeout) << to_string(error);
    EXPECT_EQ(error.rank, 2);
    expect_words(error, "rank 1 gave up set-up; rank(s) 2 of 4 had not joined");
  });
  EXPECT_LT(ms_since(start), 10'000);
}

TEST(Hub, ARankThatLeavesBetweenRoundsIsNamed) {
  const std::uint16_t port = free_port();
  on_ranks(up_to(3), [&](std::int32_t rank) {
    auto bootstrap = tcp_bootstrap(job(rank, 3, port));
    ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
    if (rank == 1) return;
    const auto blobs = (*bootstrap)->all_gather("x");
    ASSERT_FALSE(blobs.ok());
    EXPECT_EQ(blobs.error().code, ErrorCode::kPeerLost);
    EXPECT_EQ(blobs.error().rank, 1) << to_string(blobs.error());
  });
}

// When the set-up has failed already, a rank that was late completes the round, and then nobody is missing.
TEST(Hub, TakesALateBlobAndAGoodbyeAfterTheFailure) {
  const std::uint16_t port = free_port();
  std::thread late([&] {
    Rank rank(port, 1, 2);
    EXPECT_TRUE(rank.join());
    EXPECT_TRUE(rank.hear_sealed().starts_with('!'));
    rank.say_sealed("bx");
    rank.say_sealed("q");
  });
  auto options = job(0, 2, port);
  options.timeout_ms = 300;
  const Error error = failure_of(options);  // the hub lives on until the late rank has left
  late.join();
  EXPECT_EQ(error.code, ErrorCode::kTimeout);
  EXPECT_EQ(error.rank, 1);
}

TEST(Hub, IsLeftByTheOthersWhenItEnds) {
  const std::uint16_t port = free_port();
  const pid_t root = fork();
  if (root == 0) {
    alarm(30);
    auto bootstrap = tcp_bootstrap(job(0, 2, port));
    pause();
    _exit(0);
  }
  auto bootstrap = tcp_bootstrap(job(1, 2, port));
  ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    kill(root, SIGKILL);
  });
  const auto start = Clock::now();
  const auto blobs = (*bootstrap)->all_gather("x");
  ASSERT_FALSE(blobs.ok());
  EXPECT_EQ(blobs.error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(blobs.error().rank, 0);
  EXPECT_LT(ms_since(start), 10'000);
  killer.join();
  waitpid(root, nullptr, 0);
}

// Derived ports may be taken: by a program that says nothing of ours, by another job. All ranks find the one hub.
TEST(Hub, IsFoundBehindForeignListenersOnItsPorts) {
  auto foreign = Listener::open("127.0.0.1", std::vector<std::uint16_t>{0}).value();
  auto other = Listener::open("127.0.0.1", std::vector<std::uint16_t>{0}).value();
  const std::vector<std::uint16_t> ports = {foreign.port(), other.port(), free_port()};
  const int foreign_fd = foreign.release();
  std::thread echo([&] {  // answers every hello with nonsense
    while (true) {
      const int fd = accept(foreign_fd, nullptr, nullptr);
      if (fd < 0) return;
      EXPECT_GT(send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL), 0);
      close(fd);
    }
  });
  auto other_hub =
      RendezvousHub::start(std::move(other),
                           {.job_id = "another", .key = test::key_for_tests(), .size = 2, .first_patience_ms = 20'000})
          .value();
  on_ranks(up_to(4), [&](std::int32_t rank) {
    RendezvousOptions options = job(rank, 4, 0);
    options.ports = ports;
    if (rank == 0) std::this_thread::sleep_for(milliseconds(150));
    EXPECT_TRUE(meets(options));
  });
  RendezvousOptions lonely = job(1, 2, 0);
  lonely.ports = {ports[0], ports[1]};
  lonely.timeout_ms = 2000;
  expect_words(failure_of(lonely), "another job of Tutti");
  shutdown(foreign_fd, SHUT_RDWR);
  echo.join();
  close(foreign_fd);
}

TEST(Hub, WithoutAnyFreePortRankZeroSaysSo) {
  auto taken = Listener::open("127.0.0.1", std::vector<std::uint16_t>{0}).value();
  const Error error = failure_of(job(0, 2, taken.port()));
  EXPECT_EQ(error.code, ErrorCode::kSystem);
  expect_words(error, "rank 0 cannot listen on 127.0.0.1:" + std::to_string(taken.port()));
}

RendezvousOptions by_id(std::int32_t rank, std::int32_t size, const UniqueId& id) {
  RendezvousOptions options;
  options.rank = rank;
  options.size = size;
  options.unique_id = id;
  options.timeout_ms = 20'000;
  return options;
}

TEST(UniqueId, SeveralServeAtTheSameTimeEachOnce) {
  const std::vector<UniqueId> ids = {UniqueId::create().value(), UniqueId::create().value(),
                                     UniqueId::create().value()};
  on_ranks(up_to(9), [&](std::int32_t i) { EXPECT_TRUE(meets(by_id(i / 3, 3, ids[std::size_t(i % 3)]))); });
  RendezvousOptions again = by_id(0, 3, ids[0]);
  const auto start = Clock::now();
  expect_words(failure_of(again), "an id serves once");
  EXPECT_LT(ms_since(start), 5000) << "no need to wait for the whole deadline";
}

TEST(UniqueId, TheMakerNeedsToBeNoRank) {
  std::vector<pid_t> children;
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  for (std::int32_t rank = 0; rank < 3; ++rank) {  // before there are threads: a fork may catch one with a lock in hand
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      std::array<char, 256> text{};
      if (read(pipe_ends[0], text.data(), text.size()) != ssize_t{text.size()}) _exit(2);
      const auto id = UniqueId::from_text({text.data(), text.size()});
      _exit(id.ok() && meets(by_id(rank, 3, *id)) ? 0 : 1);
    }
    children.push_back(child);
  }
  const std::string text = UniqueId::create().value().to_text();
  for (std::size_t i = 0; i < children.size(); ++i) {  // as much as PIPE_BUF takes is written and read as one
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
  std::thread first([&] { EXPECT_TRUE(meets(by_id(1, 2, id))); });
  std::this_thread::sleep_for(milliseconds(100));
  expect_words(failure_of(by_id(2, 3, id)), "rank 2 says that there are 3 ranks, the first to come said 2");
  EXPECT_TRUE(meets(by_id(0, 2, id)));
  first.join();
}

TEST(UniqueId, EndsWhenNobodyComes) {
  const UniqueId id = UniqueId::create({.patience = milliseconds(50)}).value();
  std::this_thread::sleep_for(milliseconds(400));
  expect_words(failure_of(by_id(0, 2, id)), "nobody serves the unique id");
}

}  // namespace
}  // namespace tutti
