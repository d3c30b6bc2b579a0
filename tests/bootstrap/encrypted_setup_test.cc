// Set-up of encrypted jobs, of real processes: somebody between a rank and the server reads nothing but the handshake,
// and can change nothing.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <new>
#include <vector>

#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/hostile.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/raw_rank.h"
#include "bootstrap/rendezvous_server.h"
#include "communicator/process_support.h"

namespace tutti::test {

extern bool no_tls_library;  // encrypt_test.cc

namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kName = "a-name-that-can-be-read";  // of a machine; what ranks tell each other in set-up
constexpr std::size_t kHello = 4 + sizeof(wire::Hello);
constexpr std::size_t kAnswer = 4 + sizeof(wire::Answer);
constexpr std::size_t kChallenge = 4 + 1 + sizeof(wire::Challenge);

// What each rank ended with, in memory that parent and children share; empty: well.
struct Ends {
  char words[2][1024];
  std::string of(int rank) const { return words[rank]; }
  std::string all() const { return of(0) + " / " + of(1); }
};

Ends* make_ends() {
  return new (mmap(nullptr, sizeof(Ends), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Ends{};
}

pid_t start_rank(Ends& ends, const CommunicatorOptions& options) {
  return start([&ends, options] {
    auto made = Communicator::create(options);
    if (made.ok()) return 0;
    strncpy(ends.words[options.rank], to_string(made.error()).c_str(), sizeof(ends.words[0]) - 1);
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
    Ends& ends = *make_ends();
    const std::uint16_t port = free_port();
    Proxy proxy(port);
    const pid_t root = start_rank(ends, by_tcp(0, port, encrypt));
    const pid_t other = start_rank(ends, by_tcp(1, proxy.port(), encrypt));
    proxy.begin();
    EXPECT_EQ(status_of(root), 0) << ends.all();
    EXPECT_EQ(status_of(other), 0) << ends.all();
    const Proxy::Seen seen = proxy.seen(0);
    ASSERT_GT(seen.to_server.size(), kHello + kAnswer + 200);
    for (const std::string& all : {seen.to_server, seen.to_rank}) {
      if (encrypt) {
        EXPECT_THAT(all, Not(HasSubstr(kName)));
      } else {
        EXPECT_THAT(all, HasSubstr(kName)) << "the control";
      }
    }
  }
}

// One bit changed anywhere behind the answer: of the TLS handshake, of the welcome, of the rounds.
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
    Ends& ends = *make_ends();
    const std::uint16_t port = free_port();
    std::atomic<bool> changed = false;
    Proxy proxy(port, [bit, &changed](bool to_server, std::size_t at, char byte) {
      if (to_server != bit.to_server || at != bit.place) return byte;
      changed = true;
      return static_cast<char>(byte ^ 1);
    });
    const auto begin = std::chrono::steady_clock::now();
    const pid_t root = start_rank(ends, by_tcp(0, port, true));
    const pid_t other = start_rank(ends, by_tcp(1, proxy.port(), true));
    proxy.begin();
    EXPECT_EQ(status_of(root), 3);
    EXPECT_EQ(status_of(other), 3);
    EXPECT_TRUE(changed);
    EXPECT_THAT(ends.all(), HasSubstr("altered on its way"));
    EXPECT_THAT(ends.of(0), AnyOf(HasSubstr("rank 1"), HasSubstr("altered")));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, patience()) << "not by the set-up timeout";
  }
}

// The hello says, in clear, that this rank encrypts. Without that word the server would go on in clear.
TEST(EncryptedSetUp, NobodyOnTheWayCanSwitchItOff) {
  Ends& ends = *make_ends();
  const std::uint16_t port = free_port();
  Proxy proxy(port, [](bool to_server, std::size_t at, char byte) {
    return to_server && at == 4 + offsetof(wire::Hello, encryption) ? '\0' : byte;
  });
  CommunicatorOptions root_options = by_tcp(0, port, true);
  root_options.setup_timeout = scaled(milliseconds(3000));
  const pid_t root = start_rank(ends, root_options);
  const pid_t other = start_rank(ends, by_tcp(1, proxy.port(), true));
  proxy.begin();
  EXPECT_EQ(status_of(root), 3);
  EXPECT_EQ(status_of(other), 3);
  EXPECT_THAT(ends.of(1), HasSubstr("the server has another"));
  EXPECT_THAT(proxy.seen(0).to_server, Not(HasSubstr(kName)));
  EXPECT_LE(proxy.seen(0).to_server.size(), kHello + 4) << "no more than the hello";
}

// One of three ranks, by an address that is not loopback's, as between machines; the last of them comes late, and is
// told all the same.
struct Odd {
  std::int32_t rank;
  bool encrypts, has_library;
  const char* words;
};

void all_are_told(const Odd& odd) {
  const auto address = outward_address();
  if (!address) GTEST_SKIP() << "this machine has loopback addresses only";
  struct Told {
    char words[3][1024];
  };
  Told& told = *new (mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Told{};
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (const std::int32_t rank : {0, 1, 2}) {
    CommunicatorOptions options = by_tcp(rank, port, rank == odd.rank ? odd.encrypts : true);
    options.size = 3;
    options.root = *address + ":" + std::to_string(port);
    ranks.push_back(start([&told, rank, options, &odd] {
      no_tls_library = rank == odd.rank && !odd.has_library;
      if (rank == 2) std::this_thread::sleep_for(milliseconds(700));
      auto made = Communicator::create(options);
      if (made.ok()) return 0;
      strncpy(told.words[rank], to_string(made.error()).c_str(), sizeof(told.words[0]) - 1);
      return 3;
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 3);
  for (const auto& words : told.words) EXPECT_THAT(std::string(words), HasSubstr(odd.words));
}

TEST(EncryptedSetUp, AcrossANetworkAllMustSayTheSame) {
  all_are_told({.rank = 0,
                .encrypts = false,
                .has_library = true,
                .words = "rank 0 has TUTTI_ENCRYPT=0, rank 1 has TUTTI_ENCRYPT=1"});
  all_are_told({.rank = 1,
                .encrypts = false,
                .has_library = true,
                .words = "rank 1 has TUTTI_ENCRYPT=0, rank 0 has TUTTI_ENCRYPT=1"});
}

TEST(EncryptedSetUp, AcrossANetworkAllAreToldWhoLacksTheLibrary) {
  for (const std::int32_t rank : {0, 1}) {
    all_are_told({.rank = rank, .encrypts = true, .has_library = false, .words = "the package libssl3"});
  }
}

// Who can share memory meets on loopback, whoever has the library.
TEST(EncryptedSetUp, WithinAMachineAnyMayLackTheLibrary) {
  for (const std::int32_t lacks : {0, 1}) {
    Ends& ends = *make_ends();
    const std::uint16_t port = free_port();
    std::vector<pid_t> ranks;
    for (const std::int32_t rank : {0, 1}) {
      CommunicatorOptions options = by_tcp(rank, port, true);
      options.transport = "shm";
      ranks.push_back(start([&ends, rank, lacks, options] {
        no_tls_library = rank == lacks;
        auto made = Communicator::create(options);
        if (made.ok()) return 0;
        strncpy(ends.words[rank], to_string(made.error()).c_str(), sizeof(ends.words[0]) - 1);
        return 3;
      }));
    }
    for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0) << ends.all();
  }
}

// Whoever makes an id is no rank and says nothing of encryption: its server goes by the ranks.
TEST(EncryptedSetUp, OfAUniqueIdGoesByItsRanks) {
  struct Made {
    std::atomic<int> state = 0;  // 1: here is the id, 2: there is none
    UniqueId id;
  };
  Made& made = *new (mmap(nullptr, sizeof(Made), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Made{};
  const auto address = outward_address();
  const pid_t maker = start([&] {  // a process of its own, whose thread no fork copies
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
  Ends& ends = *make_ends();
  std::vector<pid_t> ranks;
  for (const std::int32_t rank : {0, 1}) {
    CommunicatorOptions options = by_tcp(rank, 0, true);
    options.root.clear();
    options.unique_id = made.id;
    ranks.push_back(start_rank(ends, options));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0) << ends.all();
  kill(maker, SIGKILL);
  EXPECT_EQ(status_of(maker), 128 + SIGKILL);
}

// A stranger may know the job's id and ask for TLS. Only a rank that has the key makes the server load a library.
TEST(EncryptedSetUp, ARankMustShowTheKeyBeforeTheHubLoadsTheLibrary) {
  const pid_t server_process = start([] {  // nothing else has loaded it there
    const auto loaded = [] { return dlopen("libssl.so.3", RTLD_NOW | RTLD_NOLOAD) != nullptr; };
    auto listener = Listener::open("127.0.0.1", std::array<std::uint16_t, 1>{0});
    if (!listener) return 3;
    const std::uint16_t port = listener->port();
    auto server = RendezvousServer::start(
        std::move(*listener),
        {.job_id = "job", .key = key_for_tests(), .size = 2, .first_patience_ms = patience().count()});
    if (!server) return 3;
    RawRank stranger(port, 1, 2, "job", key_for_tests("made up"));
    stranger.hello.encryption = wire::Encryption::kOn;
    if (stranger.greet()) return 4;
    stranger.say(wire::frame(stranger.answer()));
    if (stranger.hear().find("another job key") == std::string::npos) return 5;
    if (loaded()) return 6;
    RawRank rank(port, 1, 2, "job");
    rank.hello.encryption = wire::Encryption::kOn;
    rank.join();
    if (rank.heard != wire::can_encrypt(true)) return 7;
    return loaded() ? 0 : 8;
  });
  EXPECT_EQ(status_of(server_process), 0);
}

}  // namespace
}  // namespace tutti::test
