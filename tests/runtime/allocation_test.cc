// Every allocation of a call fails once. For each n, a process of its own makes two ranks, lets the n-th `operator new`
// of a call throw std::bad_alloc, and checks that no rank hangs or crashes, that what is reported as good is right,
// that the next call comes back, and that the communicator can be destroyed. The sweep over n ends when a call passes
// without having reached its n-th allocation.
//
// The long program tries every n; the short one as many as fit into a few seconds, spread evenly.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/failing_allocations.h"
#include "runtime/support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

// What a rank passes and gets.
struct Buffers {
  std::vector<float> input, output;
  Group group{};
};

struct CallKind {
  const char* name;
  std::size_t count;  // elements
  Status (*call)(Communicator& rank, Buffers& buffers);
  bool (*right)(Communicator& rank, const Buffers& buffers);  // after a call that was reported as good
  bool in_background = false;                                 // a thread of the library may carry it out
};

bool has_sum(Communicator& rank, const Buffers& buffers) {
  for (std::size_t i = 0; i < buffers.output.size(); ++i) {
    if (buffers.output[i] != sum_of(rank.size(), i)) return false;
  }
  return true;
}

bool has_input_of(std::int32_t sender, const Buffers& buffers) {
  for (std::size_t i = 0; i < buffers.output.size(); ++i) {
    if (buffers.output[i] != input_of(sender, i)) return false;
  }
  return true;
}

Status sum(Communicator& rank, Buffers& buffers) {
  return rank.all_reduce(buffers.input.data(), buffers.output.data(), buffers.input.size(), DataType::kFloat32,
                         ReduceOp::kSum);
}

Status sum_in_background(Communicator& rank, Buffers& buffers) {
  auto work = start_sum(rank, buffers.input.data(), buffers.output.data(), buffers.input.size());
  if (!work) return work.error();
  while (!work->test()) std::this_thread::yield();
  return work->wait();
}

Status broadcast(Communicator& rank, Buffers& buffers) {
  return rank.broadcast(buffers.input.data(), buffers.output.data(), buffers.input.size(), DataType::kFloat32, 0);
}

// Rank 0 to rank 1, which is the one whose allocations fail.
Status send(Communicator& rank, Buffers& buffers) {
  const std::size_t count = buffers.input.size();
  if (rank.rank() == 0) return rank.send(buffers.input.data(), count, DataType::kFloat32, 1);
  return rank.receive(buffers.output.data(), count, DataType::kFloat32, 0);
}

Status exchange(Communicator& rank, Buffers& buffers) {
  const std::size_t count = buffers.input.size();
  Group& group = buffers.group;
  if (auto sent = group.send(rank, buffers.input.data(), count, DataType::kFloat32, 1 - rank.rank()); !sent)
    return sent;
  auto received = group.receive(rank, buffers.output.data(), count, DataType::kFloat32, 1 - rank.rank());
  return received.ok() ? group.run() : received;
}

Status all_to_all_v(Communicator& rank, Buffers& buffers) {
  const std::size_t half = buffers.input.size() / 2;
  const std::size_t rest = buffers.input.size() - half;
  // What a rank sends to the other one is what that one receives from it.
  const bool first = rank.rank() == 0;
  const std::array<std::size_t, 2> counts = {first ? half : rest, first ? rest : half};
  return rank.all_to_all_v(buffers.input.data(), {.counts = counts}, buffers.output.data(), {.counts = counts},
                           DataType::kFloat32);
}

// Both ranks fail, without any failed allocation: the lengths differ.
Status differing_sums(Communicator& rank, Buffers& buffers) {
  const std::size_t count = buffers.input.size() - static_cast<std::size_t>(rank.rank());
  return rank.all_reduce(buffers.input.data(), buffers.output.data(), count, DataType::kFloat32, ReduceOp::kSum);
}

// Likewise, with another transfer beside, which cannot begin.
Status differing_exchange(Communicator& rank, Buffers& buffers) {
  Group& group = buffers.group;
  const std::int32_t peer = 1 - rank.rank();
  const std::size_t count = buffers.input.size() - static_cast<std::size_t>(rank.rank());
  Status queued = group.send(rank, buffers.input.data(), count, DataType::kFloat32, peer);
  if (queued.ok()) queued = group.receive(rank, buffers.output.data(), count, DataType::kFloat32, peer);
  if (queued.ok()) queued = group.receive(rank, buffers.output.data(), 1, DataType::kFloat32, peer);
  return queued.ok() ? group.run() : queued;
}

constexpr CallKind kCalls[] = {
    {"ShortSum", 2, sum, has_sum},
    {"LongSum", 300'007, sum, has_sum},
    {"SumInBackground", 1000, sum_in_background, has_sum, true},
    {"Broadcast", 1000, broadcast, [](Communicator&, const Buffers& buffers) { return has_input_of(0, buffers); }},
    {"Send", 100'003, send,
     [](Communicator& rank, const Buffers& buffers) { return rank.rank() == 0 || has_input_of(0, buffers); }},
    {"Exchange", 1000, exchange,
     [](Communicator& rank, const Buffers& buffers) { return has_input_of(1 - rank.rank(), buffers); }},
    {"AllToAllV", 1001, all_to_all_v, [](Communicator&, const Buffers&) { return true; }},
    {"DifferingSums", 1000, differing_sums, [](Communicator&, const Buffers&) { return true; }},
};

// Each trial ends by the deadline of its call, because a transfer without a peer waits beside those that differ.
constexpr CallKind kSlowCalls[] = {
    {"DifferingExchange", 100'003, differing_exchange, [](Communicator&, const Buffers&) { return true; }},
};

// How a process that tries one n ends.
enum Outcome : int { kReached = 0, kNotReached = 10, kWrongData = 11, kNoMessage = 12, kWrongScope = 13 };

// Of calls. Short, because many end by it, and an error by it is as good as any other here.
constexpr milliseconds kTimeout{200};
constexpr milliseconds kMakesPeerWait{5};

// One call on each rank, of which the n-th allocation fails: of rank 1, or, if a thread of the library may carry the
// call out, of either. 0: none fails. What the test itself needs is made before, and no rank goes on before all are
// back.
class Trial {
 public:
  Trial(Communicators& ranks, const CallKind& kind, std::int64_t n) : ranks_(ranks), kind_(kind), n_(n) {
    for (auto& rank : ranks) {
      Buffers& buffers = buffers_.emplace_back();
      buffers.output.resize(kind.count);
      for (std::size_t i = 0; i < kind.count; ++i) buffers.input.push_back(input_of(rank->rank(), i));
    }
  }

  int run() {
    on_every_rank(ranks_, [&](Communicator& rank) {
      if (const int judged = judge(rank); judged != 0) worst_ = judged;
    });
    return worst_;
  }

 private:
  int judge(Communicator& rank) {
    Buffers& buffers = buffers_.at(static_cast<std::size_t>(rank.rank()));
    if (rank.rank() == 1) failing_allocations::fail_after(n_, kind_.in_background);
    meet_.arrive_and_wait();
    Status status = kind_.call(rank, buffers);
    ended_.at(static_cast<std::size_t>(rank.rank())) = status.ok() ? ErrorScope::kCall : status.error().scope;
    meet_.arrive_and_wait();
    if (rank.rank() == 1) failing_allocations::fail_after(0, false);
    meet_.arrive_and_wait();
    if (status.ok() && !kind_.right(rank, buffers)) return kWrongData;
    if (!status.ok() && status.error().message.empty()) return kNoMessage;
    float one = 1;
    // If both ranks say that only this call failed, the communicator still serves. (Late ranks are a matter of load.)
    const bool serves = ended_.at(0) == ErrorScope::kCall && ended_.at(1) == ErrorScope::kCall;
    // A rank notices that its peer has announced an abort only while it waits for that peer.
    if (serves && rank.rank() == 1 && !status.ok()) std::this_thread::sleep_for(kMakesPeerWait);
    const Status next = rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);  // comes back, well or not
    if (serves && !next.ok() && next.error().scope >= ErrorScope::kConnection) return kWrongScope;
    return 0;
  }

  Communicators& ranks_;
  const CallKind& kind_;
  const std::int64_t n_;
  std::deque<Buffers> buffers_;
  std::array<ErrorScope, 2> ended_{};  // the scope of each rank's error; kCall without one
  std::barrier<> meet_{2};
  std::atomic<int> worst_ = 0;
};

int try_one(const WorldKind& world, const CallKind& kind, bool warm, std::int64_t n) {
  alarm(static_cast<unsigned>(patience() / std::chrono::seconds(1)));
  Communicators ranks = make_world(world, 2, kTimeout);
  if (warm && Trial(ranks, kind, 0).run() != 0) return kWrongData;
  const int worst = Trial(ranks, kind, n).run();
  ranks.clear();
  if (worst != 0) return worst;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

// The exit status, or 128 and the signal.
int in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class AllocationSweep : public testing::TestWithParam<std::tuple<WorldKind, CallKind, bool, bool>> {};

TEST_P(AllocationSweep, NoFailureHangsCrashesOrLies) {
  const auto& [world, kind, warm, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  const auto outcome = [&](std::int64_t n) { return in_process([&] { return try_one(world, kind, warm, n); }); };
  std::int64_t last = 1;  // that is reached at least; by doubling
  while (outcome(2 * last) == kReached) last *= 2;
  const std::int64_t step = TUTTI_EVERY_ALLOCATION ? 1 : std::max<std::int64_t>(1, last / 4);
  std::int64_t tried = 0;
  for (std::int64_t n = 1;; n += step, ++tried) {
    const int ended = outcome(n);
    if (ended == kNotReached) break;
    ASSERT_EQ(ended, kReached) << "allocation " << n << (ended == 128 + SIGALRM ? " hangs" : "");
  }
  std::printf("%s, %s: %ld allocations failed, of between %ld and %ld\n", world.name, kind.name,
              static_cast<long>(tried), static_cast<long>(last), static_cast<long>(2 * last));
}

std::string name_of(const testing::TestParamInfo<AllocationSweep::ParamType>& info) {
  const auto& [world, kind, warm, lasts] = info.param;
  static_cast<void>(lasts);
  return std::string(world.name) + kind.name + (warm ? "Repeated" : "First");
}

INSTANTIATE_TEST_SUITE_P(Once, AllocationSweep,
                         testing::Combine(testing::ValuesIn(kWorlds), testing::ValuesIn(kCalls), testing::Bool(),
                                          testing::Values(false)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Slow, AllocationSweep,
                         testing::Combine(testing::ValuesIn(kWorlds, kWorlds + (TUTTI_EVERY_ALLOCATION ? 3 : 1)),
                                          testing::ValuesIn(kSlowCalls), testing::Values(false),
                                          testing::Values(false)),
                         name_of);

// Memory stays exhausted until the call is back. Over TCP a rank without any memory cannot tell its peers anything, so
// that each trial lasts until their deadlines: in the long program only.
INSTANTIATE_TEST_SUITE_P(Lasting, AllocationSweep,
                         testing::Combine(testing::ValuesIn(kWorlds, kWorlds + (TUTTI_EVERY_ALLOCATION ? 3 : 1)),
                                          testing::ValuesIn(kCalls), testing::Bool(), testing::Values(true)),
                         name_of);

}  // namespace
}  // namespace tutti::test
