// Tests encrypted jobs of real processes. A man in the middle sees every byte of their TCP connections, and changes
// some. To get there, this program interposes connect(). Connections to the set-up server are not redirected;
// encrypted_setup_test.cc tests those.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "bootstrap/hostile.h"
#include "communicator/process_support.h"

namespace {

// Shared memory of parent and children. Connections are redirected to the port `through`, where Middle looks up
// their destination.
struct Detour {
  pid_t owner;                              // the test process; its own connections are not redirected
  std::atomic<std::uint16_t> through;       // port of Middle; 0: nothing is redirected
  std::atomic<std::uint16_t> server;        // port of the set-up server, which is not redirected
  std::atomic<std::uint16_t> meant[65536];  // destination port, indexed by the source port of the connection
};
Detour* detour = nullptr;

}  // namespace

namespace tutti::test {
bool no_tls_library = false;  // for this process
}

extern "C" int connect(int fd, const sockaddr* to, socklen_t length) {
  static const auto next = reinterpret_cast<decltype(&connect)>(dlsym(RTLD_NEXT, "connect"));
  const auto* const address = reinterpret_cast<const sockaddr_in*>(to);
  if (detour == nullptr || detour->owner == getpid() || detour->through == 0 || to->sa_family != AF_INET)
    return next(fd, to, length);
  if (address->sin_port == htons(detour->server) || address->sin_port == htons(detour->through)) {
    return next(fd, to, length);
  }
  sockaddr_in other = *address;
  other.sin_port = htons(detour->through);
  const int result = next(fd, reinterpret_cast<sockaddr*>(&other), sizeof(other));
  const int error = errno;
  sockaddr_in own{};
  socklen_t size = sizeof(own);
  getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size);
  detour->meant[ntohs(own.sin_port)] = ntohs(address->sin_port);
  errno = error;
  return result;
}

// Simulates a system without libssl, for one test.
extern "C" void* dlopen(const char* name, int flags) {
  static const auto next = reinterpret_cast<decltype(&dlopen)>(dlsym(RTLD_NEXT, "dlopen"));
  if (tutti::test::no_tls_library && name != nullptr && std::string_view(name).starts_with("libssl")) return nullptr;
  return next(name, flags);
}

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

// Forwards connections to their destinations, records all bytes, and may change them.
class Middle {
 public:
  // Returns the new value of a byte. `connection` counts the connections; `place` is the offset of the byte in its
  // direction; `back` is true for bytes from the destination to the rank that connected.
  using Change = std::function<char(std::size_t connection, bool back, std::size_t place, char byte)>;
  explicit Middle(Change change = {}) : change_(std::move(change)) {
    detour = &shared_object<Detour>();
    std::uint16_t port = 0;
    detour->owner = getpid();
    listener_ = listen_anywhere(port);
    detour->through = port;
  }
  ~Middle() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    close(listener_);
    for (const Pair& pair : pairs_) {
      close(pair.from);
      close(pair.to);
    }
    detour = nullptr;
  }
  Middle(const Middle&) = delete;
  Middle& operator=(const Middle&) = delete;
  void begin() {
    thread_ = std::thread([this] { run(); });
  }
  void end() {
    stop_ = true;
    thread_.join();
  }
  std::size_t connections() const { return pairs_.size(); }  // call end() first
  std::size_t bytes() const {
    std::size_t all = 0;
    for (const Pair& pair : pairs_) all += pair.seen[0].size() + pair.seen[1].size();
    return all;
  }
  bool has_seen(const std::string& text) const {
    return std::any_of(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
      return pair.seen[0].find(text) != std::string::npos || pair.seen[1].find(text) != std::string::npos;
    });
  }

 private:
  struct Pair {
    int from = -1, to = -1;
    bool open = true;
    std::string seen[2];
  };
  void run() {
    while (!stop_) {
      std::vector<pollfd> waits{{.fd = listener_, .events = POLLIN, .revents = 0}};
      for (const Pair& pair : pairs_) {
        waits.push_back({.fd = pair.open ? pair.from : -1, .events = POLLIN, .revents = 0});
        waits.push_back({.fd = pair.open ? pair.to : -1, .events = POLLIN, .revents = 0});
      }
      if (poll(waits.data(), waits.size(), 20) <= 0) continue;
      const std::size_t known = pairs_.size();
      for (std::size_t i = 0; i < known; ++i) {
        if (waits[1 + 2 * i].revents != 0) pass(i, false);
        if (waits[2 + 2 * i].revents != 0) pass(i, true);
      }
      if (waits[0].revents != 0) admit();
    }
  }
  void admit() {
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    const int from = accept(listener_, reinterpret_cast<sockaddr*>(&peer), &size);
    std::uint16_t meant = 0;
    static_cast<void>(
        eventually([&] { return stop_ || (meant = detour->meant[ntohs(peer.sin_port)].exchange(0)) != 0; }));
    const int to = meant == 0 ? -1 : dial(meant, [this] { return stop_.load(); });
    pairs_.push_back({.from = from, .to = to, .open = from >= 0 && to >= 0, .seen = {}});
  }
  void pass(std::size_t index, bool back) {
    Pair& pair = pairs_[index];
    std::vector<char> bytes(65536);
    const ssize_t got = pair.open ? recv(back ? pair.to : pair.from, bytes.data(), bytes.size(), 0) : 0;
    const std::size_t count = got > 0 ? static_cast<std::size_t>(got) : 0;
    std::string& seen = pair.seen[back ? 1 : 0];
    for (std::size_t i = 0; i < count && change_; ++i) bytes[i] = change_(index, back, seen.size() + i, bytes[i]);
    seen.append(bytes.data(), count);
    if (count > 0 && send(back ? pair.from : pair.to, bytes.data(), count, MSG_NOSIGNAL) == got) return;
    pair.open = false;
    shutdown(pair.from, SHUT_RDWR);
    shutdown(pair.to, SHUT_RDWR);
  }

  const Change change_;
  int listener_ = -1;
  std::atomic<bool> stop_ = false;
  std::deque<Pair> pairs_;
  std::thread thread_;
};

CommunicatorOptions by_tcp(std::int32_t rank, std::int32_t size, std::uint16_t port, bool encrypt) {
  CommunicatorOptions options = job(rank, size, port);
  options.transport = "tcp";
  options.encrypt = encrypt;
  options.timeout = scaled(std::chrono::seconds(5));
  return options;
}

constexpr float kPattern = 1.2345678e-5f;
std::string readable_pattern() {
  const std::vector<float> some(4, kPattern);
  return {reinterpret_cast<const char*>(some.data()), some.size() * sizeof(float)};
}

// Runs all_reduce on vectors of the pattern, short and long. Returns 4 if a sum is wrong.
int add_patterns(Communicator& communicator, Status& status) {
  for (const std::size_t count : {4u, 1000u, 300000u}) {
    const std::vector<float> data(count, kPattern);
    std::vector<float> sum(count);
    for (int call = 0; call < 8; ++call) {
      status = communicator.all_reduce(data.data(), sum.data(), count, DataType::kFloat32, ReduceOp::kSum);
      if (!status.ok()) return 3;
      const float expected = kPattern * static_cast<float>(communicator.size());
      if (!std::all_of(sum.begin(), sum.end(), [&](float one) { return std::abs(one / expected - 1) < 1e-5f; }))
        return 4;
    }
  }
  return 0;
}

TEST(Encrypt, WhoSitsBetweenTheRanksSeesNoneOfTheirData) {
  for (const bool encrypt : {false, true}) {
    const std::uint16_t port = free_port();
    Middle middle;
    detour->server = port;
    std::vector<pid_t> ranks;
    for (const std::int32_t rank : {0, 1, 2}) {
      ranks.push_back(start([=] {
        auto made = Communicator::create(by_tcp(rank, 3, port, encrypt));
        if (!made.ok()) return 2;
        Status status;
        return add_patterns(**made, status);
      }));
    }
    middle.begin();
    for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0);
    middle.end();
    EXPECT_GE(middle.connections(), 3u);
    EXPECT_GT(middle.bytes(), 3'000'000u);
    EXPECT_EQ(middle.has_seen(readable_pattern()), !encrypt) << "the pattern must be visible only without encryption";
  }
}

// Changes one bit at several offsets. No rank may get a wrong sum or wait for long, and the errors of both ranks
// must name the other one.
TEST(Encrypt, AChangedBitIsAnErrorThatNamesThePeerOnBothSides) {
  struct Bit {
    bool back;
    std::size_t place;
  };
  for (const Bit& bit :
       {Bit{false, 40}, Bit{false, 200}, Bit{true, 30}, Bit{true, 150}, Bit{false, 2000}, Bit{false, 900000}}) {
    const std::string trace = fmt::format("byte {} of the way {}", bit.place, bit.back ? "back" : "there");
    SCOPED_TRACE(trace);
    const std::uint16_t port = free_port();
    Middle middle([bit](std::size_t connection, bool back, std::size_t place, char byte) {
      return static_cast<char>(connection == 0 && back == bit.back && place == bit.place ? byte ^ 16 : byte);
    });
    detour->server = port;
    std::string folder = (std::filesystem::temp_directory_path() / "tutti-encrypt-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    std::vector<pid_t> ranks;
    for (const std::int32_t rank : {0, 1}) {
      ranks.push_back(start([=, &folder] {
        auto made = Communicator::create(by_tcp(rank, 2, port, true));
        if (!made.ok()) return 2;
        Status status;
        int result = 0;
        for (int i = 0; i < 3 && result == 0; ++i) result = add_patterns(**made, status);
        std::ofstream(folder + "/" + std::to_string(rank)) << status.error().rank << " " << to_string(status.error());
        return result;
      }));
    }
    middle.begin();
    const auto told = [&](int rank) {
      std::ifstream file(folder + "/" + std::to_string(rank));
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    for (const int rank : {0, 1}) {
      EXPECT_EQ(status_of(ranks[static_cast<std::size_t>(rank)]), 3) << "rank " << rank << ": " << told(rank);
      EXPECT_NE(told(rank).find("peer lost: "), std::string::npos) << "rank " << rank << ": " << told(rank);
      EXPECT_NE(told(rank).find(fmt::format("rank {} ", 1 - rank)), std::string::npos) << told(rank);
      const bool relayed = told(rank).find("it cannot reach this rank any more") != std::string::npos;
      EXPECT_TRUE(relayed || told(rank).starts_with(fmt::format("{} ", 1 - rank))) << told(rank);
    }
    EXPECT_NE((told(0) + told(1)).find("altered"), std::string::npos) << told(0) << "\n" << told(1);
    middle.end();
    std::filesystem::remove_all(folder);
  }
}

TEST(Encrypt, AllRanksMustSayTheSame) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (const std::int32_t rank : {0, 1}) {
    ranks.push_back(start([=] {
      auto made = Communicator::create(by_tcp(rank, 2, port, rank == 0));
      if (made.ok()) return 2;
      const std::string& said = made.error().message;
      const bool named = said.find("rank 0 has") != std::string::npos && said.find("rank 1 has") != std::string::npos &&
                         said.find("TUTTI_ENCRYPT=0") != std::string::npos;
      return made.error().code == ErrorCode::kMismatch && named ? 0 : 3;
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0);
}

TEST(Encrypt, WhatCannotBeHadIsAnErrorThatSaysWhatToDo) {
  for (const char* transport : {"verbs", "ucx"}) {
    const std::uint16_t port = free_port();
    std::vector<pid_t> ranks;
    for (const std::int32_t rank : {0, 1}) {
      ranks.push_back(start([=] {
        CommunicatorOptions options = by_tcp(rank, 2, port, true);
        options.transport = transport;
        auto made = Communicator::create(options);
        if (made.ok()) return 2;
        return made.error().message.find("cannot be encrypted") != std::string::npos ? 0 : 3;
      }));
    }
    for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0) << transport;
  }
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (const std::int32_t rank : {0, 1}) {
    ranks.push_back(start([=] {
      no_tls_library = rank == 1;
      auto made = Communicator::create(by_tcp(rank, 2, port, true));
      if (made.ok()) return 2;
      const std::string& said = made.error().message;
      const bool named = rank == 1 || said.find("rank 1") != std::string::npos;
      return said.find("libssl3") != std::string::npos && named ? 0 : 3;
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0);
}

// Ranks that share memory need no TLS library and do not encrypt.
TEST(Encrypt, NothingIsEncryptedWithinAMachine) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (const std::int32_t rank : {0, 1}) {
    ranks.push_back(start([=] {
      no_tls_library = true;
      CommunicatorOptions options = by_tcp(rank, 2, port, true);
      options.transport = "auto";
      auto made = Communicator::create(options);
      if (!made.ok()) return 2;
      Status status;
      return add_patterns(**made, status);
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0);
}

}  // namespace
}  // namespace tutti::test
