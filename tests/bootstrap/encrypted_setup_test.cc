// Tests the set-up of encrypted jobs, with ranks as processes. A man in the middle between a rank and the server can
// read only the handshake, and cannot change anything unnoticed.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/hostile.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/raw_rank.h"
#include "bootstrap/rendezvous_server.h"
#include "communicator/process_support.h"

namespace tutti::test {

extern bool no_tls_library;  // defined in encrypt_test.cc

namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// name of a machine; ranks send it to each other during set-up
constexpr const char* kName = "a-name-that-can-be-read";
constexpr std::size_t kHello = 4 + sizeof(wire::Hello);
constexpr std::size_t kAnswer = 4 + sizeof(wire::Answer);
constexpr std::size_t kChallenge = 4 + 1 + sizeof(wire::Challenge);

// The error message of each rank, in memory that parent and children share; empty if the rank succeeded.
struct RankErrors {
  char words[2][1024];
  std::string of(int rank) const { return words[rank]; }
  std::string all() const { return of(0) + " / " + of(1); }
};

RankErrors* make_rank_errors() { return &shared_object<RankErrors>(); }

pid_t start_rank(RankErrors& rank_errors, const CommunicatorOptions& options) {
  return start([&rank_errors, options] {
    auto made = Communicator::create(options);
    if (made.ok()) return 0;
    strncpy(rank_errors.words[options.rank], to_string(made.error()).c_str(), sizeof(rank_errors.words[0]) - 1);
    return 3;
  });
}

CommunicatorOptions by_tcp(std::int32_t rank, std::uint16_t port, bool encrypt) {
  CommunicatorOptions options = job(rank, 2, port);
  options.transport = "tcp";
  options.encrypt = encrypt;
  options.node_id = kName;
  return options;
}

TEST(EncryptedSetUp, WhoReadsAllOfItLearnsNoName) {
  for (const bool encrypt : {false, true}) {
    RankErrors& rank_errors = *make_rank_errors();
    const std::uint16_t port = free_port();
    Proxy proxy(port);
    const pid_t root = start_rank(rank_errors, by_tcp(0, port, encrypt));
    const pid_t other = start_rank(rank_errors, by_tcp(1, proxy.port(), encrypt));
    proxy.begin();
    EXPECT_EQ(status_of(root), 0) << rank_errors.all();
    EXPECT_EQ(status_of(other), 0) << rank_errors.all();
    const Proxy::Seen seen = proxy.seen(0);
    ASSERT_GT(seen.to_server.size(), kHello + kAnswer + 200);
    for (const std::string& all : {seen.to_server, seen.to_rank}) {
      if (encrypt) {
        EXPECT_THAT(all, Not(HasSubstr(kName)));
      } else {
        EXPECT_THAT(all, HasSubstr(kName)) << "without encryption the name must be visible";
      }
    }
  }
}

// Changes one bit after the answer: in the TLS handshake, in the welcome, or in the rounds.
TEST(EncryptedSetUp, WhatIsAlteredOnItsWayEndsIt) {
  struct Bit {
    bool to_server;
    std::size_t place;
  };
  for (const Bit& bit :
       {Bit{true, kHello + kAnswer + 50}, Bit{true, kHello + kAnswer + 300}, Bit{true, kHello + kAnswer + 700},
        Bit{false, kChallenge + 50}, Bit{false, kChallenge + 300}, Bit{false, kChallenge + 500}}) {
    SCOPED_TRACE(std::string(bit.to_server ? "to the server, byte " : "to the rank, byte ") +
                 std::to_string(bit.place));
    RankErrors& rank_errors = *make_rank_errors();
    const std::uint16_t port = free_port();
    std::atomic<bool> changed = false;
    Proxy proxy(port, [bit, &changed](bool to_server, std::size_t at, char byte) {
      if (to_server != bit.to_server || at != bit.place) return byte;
      changed = true;
      return static_cast<char>(byte ^ 1);
    });
    const auto begin = std::chrono::steady_clock::now();
    const pid_t root = start_rank(rank_errors, by_tcp(0, port, true));
    const pid_t other = start_rank(rank_errors, by_tcp(1, proxy.port(), true));
    proxy.begin();
    EXPECT_EQ(status_of(root), 3);
    EXPECT_EQ(status_of(other), 3);
    EXPECT_TRUE(changed);
    EXPECT_THAT(rank_errors.all(), HasSubstr("altered on its way"));
    EXPECT_THAT(rank_errors.of(0), AnyOf(HasSubstr("rank 1"), HasSubstr("altered")));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, patience()) << "the error must come before the set-up timeout";
  }
}

// The hello is sent in clear and contains the flag that this rank encrypts. If the flag is removed on the way, the
// server must not continue without encryption.
TEST(EncryptedSetUp, NobodyOnTheWayCanSwitchItOff) {
  RankErrors& rank_errors = *make_rank_errors();
  const std::uint16_t port = free_port();
  Proxy proxy(port, [](bool to_server, std::size_t at, char byte) {
    return to_server && at == 4 + offsetof(wire::Hello, encryption) ? '\0' : byte;
  });
  CommunicatorOptions root_options = by_tcp(0, port, true);
  root_options.setup_timeout = scaled(milliseconds(3000));
  const pid_t root = start_rank(rank_errors, root_options);
  const pid_t other = start_rank(rank_errors, by_tcp(1, proxy.port(), true));
  proxy.begin();
  EXPECT_EQ(status_of(root), 3);
  EXPECT_EQ(status_of(other), 3);
  EXPECT_THAT(rank_errors.of(1), HasSubstr("the server has another"));
  EXPECT_THAT(proxy.seen(0).to_server, Not(HasSubstr(kName)));
  EXPECT_LE(proxy.seen(0).to_server.size(), kHello + 4) << "the rank must send only the hello";
}

// One rank of three differs from the others. They meet at an address that is not loopback, as between machines. Rank
// 2 joins late, and must get the error as well.
struct DifferingRank {
  std::int32_t rank;
  bool encrypts, has_library;
  const char* words;
};

void expect_all_report(const DifferingRank& differing) {
  const auto address = outward_address();
  if (!address) GTEST_SKIP() << "this machine has loopback addresses only";
  struct SharedErrors {
    char words[3][1024];
  };
  SharedErrors& shared_errors = shared_object<SharedErrors>();
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (const std::int32_t rank : {0, 1, 2}) {
    CommunicatorOptions options = by_tcp(rank, port, rank == differing.rank ? differing.encrypts : true);
    options.size = 3;
    options.root = *address + ":" + std::to_string(port);
    ranks.push_back(start([&shared_errors, rank, options, &differing] {
      no_tls_library = rank == differing.rank && !differing.has_library;
      if (rank == 2) std::this_thread::sleep_for(milliseconds(700));
      auto made = Communicator::create(options);
      if (made.ok()) return 0;
      strncpy(shared_errors.words[rank], to_string(made.error()).c_str(), sizeof(shared_errors.words[0]) - 1);
      return 3;
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 3);
  for (const auto& words : shared_errors.words) EXPECT_THAT(std::string(words), HasSubstr(differing.words));
}

TEST(EncryptedSetUp, AcrossANetworkAllMustSayTheSame) {
  expect_all_report({.rank = 0,
                     .encrypts = false,
                     .has_library = true,
                     .words = "rank 0 has TUTTI_ENCRYPT=0, rank 1 has TUTTI_ENCRYPT=1"});
  expect_all_report({.rank = 1,
                     .encrypts = false,
                     .has_library = true,
                     .words = "rank 1 has TUTTI_ENCRYPT=0, rank 0 has TUTTI_ENCRYPT=1"});
}

TEST(EncryptedSetUp, AcrossANetworkAllAreToldWhoLacksTheLibrary) {
  for (const std::int32_t rank : {0, 1}) {
    expect_all_report({.rank = rank, .encrypts = true, .has_library = false, .words = "the package libssl3"});
  }
}

// Ranks that can share memory meet on loopback, so no rank needs the library.
TEST(EncryptedSetUp, WithinAMachineAnyMayLackTheLibrary) {
  for (const std::int32_t lacks : {0, 1}) {
    RankErrors& rank_errors = *make_rank_errors();
    const std::uint16_t port = free_port();
    std::vector<pid_t> ranks;
    for (const std::int32_t rank : {0, 1}) {
      CommunicatorOptions options = by_tcp(rank, port, true);
      options.transport = "shm";
      ranks.push_back(start([&rank_errors, rank, lacks, options] {
        no_tls_library = rank == lacks;
        auto made = Communicator::create(options);
        if (made.ok()) return 0;
        strncpy(rank_errors.words[rank], to_string(made.error()).c_str(), sizeof(rank_errors.words[0]) - 1);
        return 3;
      }));
    }
    for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0) << rank_errors.all();
  }
}

// The process that creates a unique id is no rank and has no setting for encryption. Its server follows the ranks.
TEST(EncryptedSetUp, OfAUniqueIdGoesByItsRanks) {
  struct SharedId {
    std::atomic<int> state = 0;  // 1: the id is available, 2: it could not be created
    UniqueId id;
  };
  SharedId& made = shared_object<SharedId>();
  const auto address = outward_address();
  const pid_t maker = start([&] {  // a separate process, so that no fork copies the thread of the server
    UniqueIdOptions where;
    if (address) where.interface = *address;
    auto id = UniqueId::create(where);
    if (id) made.id = *id;
    made.state = id ? 1 : 2;
    pause();
    return 0;
  });
  while (made.state == 0) std::this_thread::yield();
  ASSERT_EQ(made.state, 1);
  RankErrors& rank_errors = *make_rank_errors();
  std::vector<pid_t> ranks;
  for (const std::int32_t rank : {0, 1}) {
    CommunicatorOptions options = by_tcp(rank, 0, true);
    options.root.clear();
    options.unique_id = made.id;
    ranks.push_back(start_rank(rank_errors, options));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0) << rank_errors.all();
  kill(maker, SIGKILL);
  EXPECT_EQ(status_of(maker), 128 + SIGKILL);
}

// A process without the key may know the job id and ask for TLS. The server must load the TLS library only after a
// rank has proved that it has the key.
TEST(EncryptedSetUp, ARankMustShowTheKeyBeforeTheHubLoadsTheLibrary) {
  const pid_t server_process = start([] {  // no other code has loaded the library in this process
    const auto loaded = [] { return dlopen("libssl.so.3", RTLD_NOW | RTLD_NOLOAD) != nullptr; };
    auto listener = Listener::open("127.0.0.1", std::array<std::uint16_t, 1>{0});
    if (!listener) return 3;
    const std::uint16_t port = listener->port();
    auto server = RendezvousServer::start(
        std::move(*listener),
        {.job_id = "job", .key = key_for_tests(), .size = 2, .first_wait_ms = patience().count()});
    if (!server) return 3;
    RawRank stranger(port, 1, 2, "job", key_for_tests("made up"));
    stranger.hello.encryption = wire::Encryption::kOn;
    if (stranger.greet()) return 4;
    stranger.send_bytes(wire::frame(stranger.answer()));
    if (stranger.receive_frame().find("another job key") == std::string::npos) return 5;
    if (loaded()) return 6;
    RawRank rank(port, 1, 2, "job");
    rank.hello.encryption = wire::Encryption::kOn;
    rank.join();
    if (rank.last_message != wire::can_encrypt(true)) return 7;
    return loaded() ? 0 : 8;
  });
  EXPECT_EQ(status_of(server_process), 0);
}

}  // namespace
}  // namespace tutti::test
