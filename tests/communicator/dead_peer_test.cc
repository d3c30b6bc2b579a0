// Tests the death of a rank's process without any notification. Every call of a survivor that needs this rank must
// fail and name it. This is tested over every transport, and also between ranks that have exchanged no messages
// before.
#include <ostream>
#include <thread>

#include "communicator/process_support.h"
#include "tests/support/threads.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

constexpr std::int32_t kSize = 3;
constexpr std::int32_t kCaller = 0;
constexpr std::int32_t kDead = 1;                    // rank 2 stays alive and makes no calls
constexpr milliseconds kPromise{1000};               // time until a death is noticed on an idle machine
constexpr std::size_t kLong = std::size_t{1} << 22;  // 16 MiB

struct Transport {
  const char* name;
  const char* transport;
  bool two_nodes;        // the dead rank is on a machine of its own
  bool leaves_a_child;   // the dead rank has forked a child, which stays alive and keeps copies of its descriptors
  const char* tls = "";  // UCX_TLS, for the transport "ucx"
  std::size_t calls = ~std::size_t{0};  // number of kCalls that are made; UCX takes 0.3 s of set-up for each
  friend void PrintTo(const Transport& one, std::ostream* out) { *out << one.name; }
};
constexpr Transport kTransports[] = {{"Shm", "auto", false, false},
                                     {"ShmWithAChild", "auto", false, true},
                                     {"Tcp", "tcp", false, false},
                                     {"TcpWithAChild", "tcp", false, true},
                                     {"MixedWithAChild", "auto", true, true}};
constexpr Transport kUcxTransports[] = {{"UcxTcp", "ucx", false, true, "tcp,self", 3}};

struct SharedState {
  std::atomic<int> ready;
  std::atomic<int> go;       // 1: the dead rank exits; 2: the caller makes its calls; 3: all exit
  std::atomic<pid_t> child;  // process id of the child that the dead rank has forked
};

// A call of rank kCaller that cannot succeed without the dead rank.
struct NamedCall {
  const char* name;
  Status (*run)(Communicator& rank, std::vector<float>& data);
  // If ranks have exchanged no messages, one may have closed its communicator properly without being able to notify
  // the other one. This does not end a wait for other senders, so the call is then not expected to fail.
  bool only_after_others = false;
};

constexpr DataType kType = DataType::kFloat32;

Status finish(Result<Work> work) { return work.ok() ? work->wait() : Status(work.error()); }

Status all_to_all_v(Communicator& rank, std::vector<float>& data) {
  const std::size_t counts[kSize] = {1, 1, 1};
  return rank.all_to_all_v(data.data(), {counts}, data.data() + kSize, {counts}, kType);
}

Status gather_v(Communicator& rank, std::vector<float>& data) {
  return rank.gather_v(data.data(), 1, nullptr, {}, kType, kDead);
}

Status scatter_v(Communicator& rank, std::vector<float>& data) {
  const std::size_t counts[kSize] = {1, 1, 0};
  return rank.scatter_v(data.data(), {counts}, data.data() + kSize, 1, kType, kCaller);
}

Status group(Communicator& rank, std::vector<float>& data) {
  Group both;
  Status added = both.send(rank, data.data(), 1, kType, kDead);
  if (added.ok()) added = both.receive(rank, data.data() + 1, 1, kType, kDead);
  return added.ok() ? both.run() : added;
}

constexpr NamedCall kCalls[] = {
    {"send of 4 bytes", [](Communicator& rank, auto& data) { return rank.send(data.data(), 1, kType, kDead); }},
    {"send of 16 MiB", [](Communicator& rank, auto& data) { return rank.send(data.data(), kLong, kType, kDead); }},
    {"receive", [](Communicator& rank, auto& data) { return rank.receive(data.data(), 1, kType, kDead); }},
    {"send in the background",
     [](Communicator& rank, auto& data) { return finish(start_send(rank, data.data(), kLong, kType, kDead)); }},
    {"receive in the background",
     [](Communicator& rank, auto& data) { return finish(start_receive(rank, data.data(), 1, kType, kDead)); }},
    {"group of a send and a receive", group},
    {"all_to_all_v", all_to_all_v},
    {"gather_v to the dead rank", gather_v},
    {"scatter_v", scatter_v},
    {"next_sender",
     [](Communicator& rank, auto&) {
       const auto sender = rank.next_sender();
       return sender.ok() ? Status() : Status(sender.error());
     },
     true},
    {"broadcast of 4 bytes",
     [](Communicator& rank, auto& data) { return rank.broadcast(data.data(), data.data(), 1, kType, kCaller); }},
    {"broadcast of 16 MiB",
     [](Communicator& rank, auto& data) { return rank.broadcast(data.data(), data.data(), kLong, kType, kCaller); }},
    {"scatter",
     [](Communicator& rank, auto& data) { return rank.scatter(data.data(), data.data(), 1, kType, kCaller); }},
    {"gather to the dead rank",
     [](Communicator& rank, auto& data) { return rank.gather(data.data(), nullptr, 1, kType, kDead); }},
    {"reduce to the dead rank",
     [](Communicator& rank, auto& data) { return rank.reduce(data.data(), nullptr, 1, kType, ReduceOp::kSum, kDead); }},
    {"all_reduce", [](Communicator& rank,
                      auto& data) { return rank.all_reduce(data.data(), data.data(), 1, kType, ReduceOp::kSum); }},
    {"barrier", [](Communicator& rank, auto&) { return rank.barrier(); }},
};

// On a busy machine a call may start late and take longer than kPromise. A call that does not notice the death at
// all lasts until its deadline, which is three times the limit of this test.
milliseconds limit() { return patience() / 2; }
milliseconds deadline() { return 3 * limit(); }

// Makes the call and returns whether it failed as expected. Raises `longest_ms` to the duration of the call if that
// is longer.
bool fails_as_promised(const NamedCall& call, Communicator& rank, bool talked, std::atomic<std::int64_t>& longest_ms) {
  std::vector<float> data(kLong);
  const std::int64_t start_ms = now_ms();
  const Status status = call.run(rank, data);
  const std::int64_t took_ms = now_ms() - start_ms;
  const bool right = !status.ok() && status.error().code == ErrorCode::kPeerLost && status.error().rank == kDead &&
                     took_ms < limit().count();
  for (std::int64_t longest = longest_ms; longest < took_ms && !longest_ms.compare_exchange_weak(longest, took_ms);) {
  }
  if (!right) {
    std::fprintf(stderr, "%s, %s: after %lld ms: %s\n", call.name, talked ? "after other calls" : "as the first call",
                 static_cast<long long>(took_ms), status.ok() ? "no error" : to_string(status.error()).c_str());
  }
  return right;
}

class DeadPeer : public testing::TestWithParam<Transport> {
 protected:
  void SetUp() override { skip_unless_possible({GetParam().name, 1, GetParam().transport, "off"}); }
};

// Makes two communicators for each call. On the first of each pair, the ranks exchange messages before the death.
Result<Communicators> make_communicators(Communicator& rank, std::size_t calls) {
  Communicators all;
  for (std::size_t i = 0; i < 2 * calls; ++i) {
    auto one = rank.duplicate();
    if (!one.ok()) return one.error();
    all.push_back(std::move(*one));
  }
  return all;
}

bool talk(Communicator& rank) {
  Group group;
  float data[2 * kSize] = {};
  for (std::int32_t peer = 0; peer < kSize; ++peer) {
    if (!group.send(rank, &data[peer], 1, kType, peer).ok()) return false;
    if (!group.receive(rank, &data[kSize + peer], 1, kType, peer).ok()) return false;
  }
  return group.run().ok() && rank.barrier().ok();
}

int make_calls(Communicators& communicators) {
  std::atomic<int> wrong = 0;
  std::atomic<std::int64_t> longest_ms = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < communicators.size(); ++i) {
    if (i % 2 == 1 && kCalls[i / 2].only_after_others) continue;
    threads.emplace_back([&, i] {
      if (!fails_as_promised(kCalls[i / 2], *communicators[i], i % 2 == 0, longest_ms)) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::fprintf(stderr, "%zu calls noticed the death within %lld ms\n", threads.size() - static_cast<std::size_t>(wrong),
               static_cast<long long>(longest_ms));
  return wrong == 0 ? 0 : 3;
}

int run_rank(std::int32_t me, const CommunicatorOptions& options, const Transport& transport, SharedState& state) {
  auto rank = Communicator::create(options);
  auto communicators =
      rank.ok() ? make_communicators(**rank, std::min(transport.calls, std::size(kCalls))) : rank.error();
  if (!communicators.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", me, to_string(communicators.error()).c_str());
    return 2;
  }
  for (std::size_t i = 0; i < communicators->size(); i += 2) {
    if (!talk(*(*communicators)[i])) return 4;
  }
  if (me == kDead && transport.leaves_a_child) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kLongestChildS);
      while (true) pause();
    }
    state.child = child;
  }
  ++state.ready;
  if (me == kDead) {
    if (!eventually([&] { return state.go != 0; })) return 5;
    _exit(0);
  }
  if (!eventually([&] { return state.go >= (me == kCaller ? 2 : 3); })) return 5;
  return me == kCaller ? make_calls(*communicators) : 0;
}

// Starts each rank as a process. `body` gets the options of its rank; its return value is the exit status.
std::vector<pid_t> start_ranks(const std::function<int(std::int32_t rank, CommunicatorOptions options)>& body) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    ranks.push_back(start([=, &body] { return body(rank, job(rank, kSize, port)); }));
  }
  return ranks;
}

// Waits until every rank is ready, and then for the exit of the dead rank's process.
void end_dead_rank(const std::vector<pid_t>& ranks, SharedState& state) {
  wait_for(state.ready, kSize);
  state.go = 1;
  EXPECT_EQ(status_of(ranks[kDead]), 0);
}

TEST_P(DeadPeer, EveryCallThatNeedsItIsAnErrorThatNamesIt) {
  const Transport& transport = GetParam();
  SharedState& state = shared_object<SharedState>();
  const std::vector<pid_t> ranks = start_ranks([&](std::int32_t rank, CommunicatorOptions options) {
    options.transport = transport.transport;
    options.timeout = deadline();
    if (transport.two_nodes) options.node_id = rank == kDead ? "b" : "a";
    if (*transport.tls != '\0') {
      setenv("UCX_TLS", transport.tls, 1);
      setenv("UCX_NET_DEVICES", "lo", 1);
    }
    return run_rank(rank, options, transport, state);
  });
  end_dead_rank(ranks, state);
  std::this_thread::sleep_for(kPromise);  // after this time even the first call must fail
  state.go = 2;
  EXPECT_EQ(status_of(ranks[kCaller]), 0);
  state.go = 3;
  EXPECT_EQ(status_of(ranks[2]), 0);
  if (state.child > 0) kill(state.child, SIGKILL);
}

// Rank 0 waits in next_sender() on the first of three communicators. Meanwhile another thread of it receives from
// the dead rank on the two other communicators, one after the other. When both receives have failed, rank 0 also had
// enough time to notice the death in next_sender().
int wait_for_any_sender(Communicators& communicators, SharedState& state) {
  std::atomic<bool> noticed = true;
  std::thread observer([&, caller = gettid()] {
    if (falls_asleep(caller)) ++state.ready;
    if (!eventually([&] { return state.go >= 2; })) noticed = false;
    for (const std::size_t i : {1, 2}) {
      float data = 0;
      const Status received = communicators[i]->receive(&data, 1, kType, kDead);
      if (received.ok() || received.error().code != ErrorCode::kPeerLost) noticed = false;
    }
    ++state.ready;
  });
  const auto sender = communicators[0]->next_sender();
  observer.join();
  if (!sender.ok()) std::fprintf(stderr, "next_sender: %s\n", to_string(sender.error()).c_str());
  if (!noticed) std::fprintf(stderr, "a receive from the dead rank did not fail with kPeerLost\n");
  float data = 0;
  const bool right = sender.ok() && *sender == 2 && communicators[0]->receive(&data, 1, kType, 2).ok();
  return right && noticed ? 0 : 5;
}

// Over TCP, ranks that have exchanged no messages have no connection. Rank 0 therefore cannot distinguish whether
// rank 1 closed its communicator properly or died, and continues to wait for any sender.
TEST(NextSenderProcesses, WaitsOnWhereADeadPeerMayHaveLeftInPeace) {
  SharedState& state = shared_object<SharedState>();
  const std::vector<pid_t> ranks = start_ranks([&](std::int32_t rank, CommunicatorOptions options) {
    options.transport = "tcp";
    const auto root = Communicator::create(options);
    if (!root.ok()) return 2;
    Communicators communicators;
    for (int i = 0; i < 3; ++i) communicators.push_back(*(*root)->duplicate());
    if (rank == kCaller) return wait_for_any_sender(communicators, state);
    ++state.ready;
    if (!eventually([&] { return state.go >= (rank == kDead ? 1 : 3); })) return 3;
    if (rank == kDead) _exit(0);
    const float data = 1;
    return communicators[0]->send(&data, 1, kType, kCaller).ok() ? 0 : 4;
  });
  end_dead_rank(ranks, state);
  state.go = 2;
  wait_for(state.ready, kSize + 1);  // rank 0 has noticed the death
  state.go = 3;
  EXPECT_EQ(status_of(ranks[kCaller]), 0);
  EXPECT_EQ(status_of(ranks[2]), 0);
}

std::string name_of(const testing::TestParamInfo<Transport>& tested) { return tested.param.name; }

INSTANTIATE_TEST_SUITE_P(Worlds, DeadPeer, testing::ValuesIn(kTransports), name_of);
INSTANTIATE_TEST_SUITE_P(UcxWorlds, DeadPeer, testing::ValuesIn(kUcxTransports), name_of);

}  // namespace
}  // namespace tutti::test
