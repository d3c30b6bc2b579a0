// The hub and its clients: all meet, strangers do not, and whoever is missing, dead or gives up is named to all others.
#include "runtime/bootstrap.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/bootstrap_wire.h"
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

// A connection without manners: says what it is told to.
class Raw {
 public:
  explicit Raw(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int attempt = 0; attempt < 400 && !connected_; ++attempt) {
      connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
      if (!connected_) std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_TRUE(connected_);
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Raw() { close(fd_); }
  void say(const std::string& bytes) { EXPECT_GT(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0); }
  void say(const wire::Hello& hello) { say(wire::frame({reinterpret_cast<const char*>(&hello), sizeof(hello)})); }
  // The body of the next frame; empty: the end.
  std::string hear() {
    std::array<char, 4> header{};
    if (recv(fd_, header.data(), header.size(), MSG_WAITALL) != 4) return {};
    std::string body(wire::frame_length(header), '\0');
    return recv(fd_, body.data(), body.size(), MSG_WAITALL) == ssize_t(body.size()) ? body : std::string();
  }

 private:
  int fd_;
  bool connected_ = false;
};

wire::Hello hello_of(std::int32_t rank, std::int32_t size) {
  wire::Hello hello{.version = wire::library_version(), .rank = rank, .size = size};
  constexpr std::string_view kJob = "bootstrap-test";
  hello.job_id_bytes = kJob.size();
  std::memcpy(hello.job_id.data(), kJob.data(), kJob.size());
  hello.timeout_ms = 20'000;
  return hello;
}

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
  const auto refused = [&](const wire::Hello& hello, const std::string& reason) {
    Raw stranger(port);
    stranger.say(hello);
    const std::string answer = stranger.hear();
    EXPECT_EQ(answer.substr(0, 1), std::string(1, '\0'));
    EXPECT_NE(answer.find(reason), std::string::npos) << answer << " lacks: " << reason;
    EXPECT_EQ(stranger.hear(), "") << "and the connection is closed";
  };
  wire::Hello hello = hello_of(1, 3);
  hello.protocol = 77;
  refused(hello, "protocol 2 is spoken here, not 77");
  hello = hello_of(1, 3);
  hello.version = 9'008'007;
  refused(hello, "rank 1 runs Tutti 9.8.7, the hub " + wire::version_text(wire::library_version()));
  hello = hello_of(1, 3);
  hello.job_id[0] = 'B';
  refused(hello, "another job");
  hello = hello_of(1, 3);
  hello.job_id_bytes = 0xffffffff;
  refused(hello, "another job");
  refused(hello_of(1, 4), "rank 1 says that there are 4 ranks, rank 0 says 3");
  refused(hello_of(3, 3), "rank 3 is outside 0..2");
  refused(hello_of(-1, 3), "rank -1 is outside 0..2");
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

TEST(Hub, ManySilentConnectionsOnlyDelayTheRealOnes) {
  auto listener = Listener::open("127.0.0.1", std::vector<std::uint16_t>{0}).value();
  const std::uint16_t port = listener.port();
  auto hub = RendezvousHub::start(
                 std::move(listener),
                 {.job_id = "bootstrap-test", .size = 2, .first_patience_ms = 20'000, .hello_patience_ms = 200})
                 .value();
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 80; ++i) silent.push_back(std::make_unique<Raw>(port));
  Raw first(port);
  first.say(hello_of(0, 2));
  std::string answer = first.hear();
  for (int attempt = 0; answer.empty() && attempt < 20; ++attempt) {  // turned away while there were too many
    std::this_thread::sleep_for(milliseconds(50));
    Raw again(port);
    again.say(hello_of(0, 2));
    answer = again.hear();
  }
  EXPECT_EQ(answer, "\1");
}

TEST(Hub, ARankThatDiesDuringSetUpIsNamedToAllAtOnce) {
  for (const bool all_had_come : {false, true}) {
    const std::uint16_t port = free_port();
    std::mutex mutex;
    Clock::time_point died;
    on_ranks({0, 1, 3, 2}, [&](std::int32_t rank) {
      if (rank == 2) {
        Raw dying(port);
        dying.say(hello_of(2, 4));
        EXPECT_EQ(dying.hear(), "\1");
        if (all_had_come) {
          dying.say(wire::frame("b"));
          EXPECT_EQ(dying.hear().substr(0, 1), "+");
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
      EXPECT_LT(ms_since(died), 1000);
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
  EXPECT_LT(ms_since(start), 3000);
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
    Raw rank(port);
    rank.say(hello_of(1, 2));
    EXPECT_EQ(rank.hear(), "\1");
    EXPECT_TRUE(rank.hear().starts_with('!'));
    rank.say(wire::frame("bx"));
    rank.say(wire::frame("q"));
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
  EXPECT_LT(ms_since(start), 1100);
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
      RendezvousHub::start(std::move(other), {.job_id = "another", .size = 2, .first_patience_ms = 20'000}).value();
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
  const UniqueId id = UniqueId::create().value();
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      _exit(meets(by_id(rank, 3, UniqueId::from_text(id.to_text()).value())) ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
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
