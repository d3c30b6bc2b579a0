// Tests the PMI-1 client with a small fake launcher, which behaves correctly, and with launchers that do not.
#include "bootstrap/pmi.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <thread>

#include "bootstrap/bootstrap.h"
#include "tests/support/patience.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

auto soon(milliseconds limit = test::patience()) { return std::chrono::steady_clock::now() + limit; }

std::string word_after(const std::string& line, const std::string& name) {
  const std::size_t at = line.find(name + "=");
  if (at == std::string::npos) return {};
  const std::size_t from = at + name.size() + 1;
  return line.substr(from, line.find(' ', from) - from);
}

// A fake launcher. It serves `ranks` descriptors from one thread until all are closed.
class Launcher {
 public:
  explicit Launcher(std::size_t ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::array<int, 2> pair{};
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
      servers_.push_back({.fd = pair[0], .events = POLLIN, .revents = 0});
      clients.push_back(pair[1]);
    }
    thread_ = std::thread([this] { serve(); });
  }
  ~Launcher() {
    for (const int fd : clients) close(fd);
    thread_.join();
    for (const pollfd& server : servers_) close(server.fd);
  }
  std::vector<int> clients;
  // Adds names for which the ranks would need very long. Call it while no rank uses the launcher.
  void add_names(const std::string& prefix, int first, int end) {
    for (int i = first; i < end; ++i) store_.emplace(prefix + std::to_string(i), "the id of an earlier communicator");
  }
  std::string first_name() const { return store_.begin()->first; }
  std::size_t names() const { return store_.size(); }

 private:
  void serve() {
    std::vector<int> in_barrier;
    std::size_t open = servers_.size();
    while (open > 0 && poll(servers_.data(), servers_.size(), 10'000) > 0) {
      for (pollfd& server : servers_) {
        if (server.revents == 0 || server.events == 0) continue;
        std::array<char, 4096> bytes{};
        const ssize_t count = read(server.fd, bytes.data(), bytes.size());
        if (count <= 0) {
          server.events = 0;
          server.fd = ~server.fd;  // poll() ignores negative descriptors
          --open;
          continue;
        }
        // one command at a time, because the client waits for each answer
        const std::string line(bytes.data(), std::size_t(count) - 1);
        const std::string command = word_after(line, "cmd");
        const std::string key = word_after(line, "key");
        if (command == "barrier_in") {
          in_barrier.push_back(server.fd);
          if (in_barrier.size() < servers_.size()) continue;
          for (const int fd : in_barrier) answer(fd, "cmd=barrier_out");
          in_barrier.clear();
        } else if (command == "get_maxes") {
          answer(server.fd, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024");
        } else if (command == "get_my_kvsname") {
          answer(server.fd, "cmd=my_kvsname kvsname=kvs_1_0");
        } else if (command == "put") {
          const bool fresh = store_.emplace(key, word_after(line, "value")).second;
          answer(server.fd, fresh ? "cmd=put_result rc=0 msg=success" : "cmd=put_result rc=-1 msg=duplicate_key");
        } else if (command == "get" && store_.contains(key)) {
          answer(server.fd, "cmd=get_result rc=0 msg=success value=" + store_[key]);
        } else {
          answer(server.fd, "cmd=get_result rc=-1 msg=key_" + key + "_not_found value=unknown");
        }
      }
    }
    for (pollfd& server : servers_) {
      if (server.fd < 0) server.fd = ~server.fd;
    }
  }
  static void answer(int fd, const std::string& line) {
    EXPECT_GT(send(fd, (line + "\n").data(), line.size() + 1, MSG_NOSIGNAL), 0);
  }
  std::vector<pollfd> servers_;
  std::map<std::string, std::string> store_;
  std::thread thread_;
};

RendezvousOptions options_of(const Launcher& launcher, std::int32_t rank) {
  RendezvousOptions options;
  options.rank = rank;
  options.size = static_cast<std::int32_t>(launcher.clients.size());
  options.host = "127.0.0.1";
  options.job_id = "hydra";
  options.pmi_fd = launcher.clients[std::size_t(rank)];
  options.timeout_ms = test::patience().count();
  return options;
}

TEST(Pmi, RanksMeetThroughTheStoreAgainAndAgain) {
  constexpr std::int32_t kRanks = 4;
  Launcher launcher(kRanks);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int communicator = 0; communicator < 3; ++communicator) {
        auto bootstrap = tcp_bootstrap(options_of(launcher, rank));
        ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
        const auto blobs = (*bootstrap)->all_gather(std::to_string(rank));
        ASSERT_TRUE(blobs.ok()) << to_string(blobs.error());
        EXPECT_EQ(*blobs, (std::vector<std::string>{"0", "1", "2", "3"}));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Pmi, AThousandCommunicatorsAreMadeAndThenAllRanksFailAtOnce) {
  Launcher launcher(2);
  const auto make = [&] {
    std::vector<std::string> ends(2);
    std::vector<std::thread> ranks;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        auto bootstrap = tcp_bootstrap(options_of(launcher, rank));
        ends[std::size_t(rank)] = bootstrap.ok() ? "made" : bootstrap.error().message;
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return ends;
  };
  const std::vector<std::string> made(2, "made");
  ASSERT_EQ(make(), made);
  ASSERT_EQ(launcher.names(), 1u);
  const std::string first = launcher.first_name();
  launcher.add_names(first.substr(0, first.size() - 1), 1, 999);
  EXPECT_EQ(make(), made) << "the last of 1000";
  for (int round = 1001; round < 1003; ++round) {
    for (const std::string& end : make()) {
      EXPECT_TRUE(end.starts_with("1000 communicators were made under one job id")) << round << ": " << end;
    }
  }
}

// The others must not wait for an id until their deadline. All may try again at once.
TEST(Pmi, AnIdThatRank0CannotMakeFailsAllAtOnce) {
  Launcher launcher(3);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      RendezvousOptions options = options_of(launcher, rank);
      options.host = "0.0.0.0";  // not the address of a server
      for (int attempt = 0; attempt < 3; ++attempt) {
        const auto bootstrap = tcp_bootstrap(options);
        ASSERT_FALSE(bootstrap.ok());
        EXPECT_EQ(bootstrap.error().code, rank == 0 ? ErrorCode::kConfig : ErrorCode::kSystem)
            << to_string(bootstrap.error());
        if (rank != 0) {
          EXPECT_EQ(bootstrap.error().rank, 0);
        }
      }
      options.host = "127.0.0.1";
      const auto bootstrap = tcp_bootstrap(options);
      EXPECT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
      if (bootstrap.ok()) (*bootstrap)->set_succeeded();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// The launcher's store holds the id in clear. A process that reads it there still lacks the job's key.
TEST(Pmi, ARankThatKnowsTheStoreAloneIsRefusedIfAKeyIsConfigured) {
  Launcher launcher(2);
  const auto over = std::make_shared<std::atomic<bool>>(false);
  std::thread root([&] {
    RendezvousOptions options = options_of(launcher, 0);
    options.configured_key = key_of_text(std::string(64, 'a')).value();
    options.stop = over;
    EXPECT_FALSE(tcp_bootstrap(options).ok());
  });
  const auto refused = tcp_bootstrap(options_of(launcher, 1));
  *over = true;
  root.join();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
  const std::string words = to_string(refused.error());
  EXPECT_NE(words.find("rank 1 has no job key, and here is one"), std::string::npos) << words;
}

TEST(Pmi, StoreTakesWhatFitsAndKnowsWhatIsMissing) {
  Launcher launcher(1);
  auto client = PmiClient::open(launcher.clients[0], soon());
  ASSERT_TRUE(client.ok()) << to_string(client.error());
  EXPECT_TRUE(client->put("key", "value").ok());
  EXPECT_EQ(client->get("key").value(), "value");
  EXPECT_EQ(client->get("other").value(), std::nullopt);
  EXPECT_FALSE(client->put("key", "again").ok());
  EXPECT_FALSE(client->put("long", std::string(1024, 'x')).ok());
  EXPECT_FALSE(client->put(std::string(64, 'k'), "x").ok());
  EXPECT_TRUE(client->barrier().ok());
}

// Returns the error of the client if the launcher sends `answer` and closes the connection.
Error error_with(const std::string& answer) {
  std::array<int, 2> pair{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  EXPECT_EQ(send(pair[0], answer.data(), answer.size(), MSG_NOSIGNAL), ssize_t(answer.size()));
  shutdown(pair[0], SHUT_WR);
  auto client = PmiClient::open(pair[1], soon());
  close(pair[0]);
  close(pair[1]);
  EXPECT_FALSE(client.ok()) << answer.substr(0, 50);
  return client.ok() ? Error{} : client.error();
}

TEST(Pmi, BadAnswersAreRefusedWithAWayOut) {
  EXPECT_EQ(error_with("rubbish\n").code, ErrorCode::kRefused);
  EXPECT_EQ(error_with("     4cmd=maxes;rc=0;\n").code, ErrorCode::kRefused);
  EXPECT_EQ(error_with(std::string(10'000, 'x')).code, ErrorCode::kRefused);
  EXPECT_EQ(error_with("cmd=maxes without an end").code, ErrorCode::kSystem);
  EXPECT_EQ(error_with("").code, ErrorCode::kSystem);
  EXPECT_NE(error_with("rubbish\n").message.find("TUTTI_ROOT=host:port"), std::string::npos);
}

TEST(Pmi, SilenceEndsAtTheDeadline) {
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  auto client = PmiClient::open(pair[1], soon(milliseconds(100)));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().code, ErrorCode::kTimeout);
  close(pair[0]);
  close(pair[1]);
  EXPECT_FALSE(PmiClient::open(1 << 20, soon(milliseconds(100))).ok()) << "the descriptor is not open";
}

// The descriptor in a launcher's variable may meanwhile belong to another file of the program. The client must not
// write to it.
TEST(Pmi, ADescriptorThatIsNoLaunchersIsNotWrittenTo) {
  const int file = memfd_create("data", MFD_CLOEXEC);
  std::array<int, 2> pipe_ends{};
  std::array<int, 2> packets{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets.data()), 0);
  const int alone = socket(AF_INET, SOCK_STREAM, 0);
  constexpr int kNotOpen = 1'000'000;
  for (const int fd : {file, pipe_ends[1], packets[1], alone, kNotOpen}) {
    const auto client = PmiClient::open(fd, soon());
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.error().code, ErrorCode::kConfig) << client.error().message;
    EXPECT_NE(client.error().message.find("has closed it (in Python, give subprocess pass_fds"), std::string::npos)
        << client.error().message;
  }
  EXPECT_EQ(lseek(file, 0, SEEK_END), 0);
  for (const int readable : {pipe_ends[0], packets[0]}) {
    pollfd look{.fd = readable, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&look, 1, 0), 0);
  }
  for (const int fd : {file, pipe_ends[0], pipe_ends[1], packets[0], packets[1], alone}) close(fd);
}

// A launcher that hangs: it answers the first commands and then does not read from its socket.
TEST(Pmi, ALauncherThatReadsNothingEndsAtTheDeadline) {
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const std::string answers =
      "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=100000000\ncmd=my_kvsname kvsname=kvs_1_0\n";
  ASSERT_EQ(write(pair[0], answers.data(), answers.size()), static_cast<ssize_t>(answers.size()));
  auto client = PmiClient::open(pair[1], soon(test::scaled(milliseconds(300))));
  ASSERT_TRUE(client.ok()) << client.error().message;
  std::string value;
  value.resize(50'000'000, 'x');  // longer than the socket buffers
  const Status put = client->put("key", value);
  ASSERT_FALSE(put.ok());
  EXPECT_EQ(put.error().code, ErrorCode::kTimeout) << put.error().message;
  close(pair[0]);
  close(pair[1]);
}

}  // namespace
}  // namespace tutti
