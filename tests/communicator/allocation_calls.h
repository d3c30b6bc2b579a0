// Trials (runtime/allocation_sweep.h) of one call on a communicator of two ranks.
#pragma once

#include "communicator/support.h"
#include "support/allocation_sweep.h"

namespace tutti::test {

// What a rank passes to a call and gets from it.
struct CallData {
  std::vector<float> input, output;
  Group group{};
  Agreement agreement{};
  Memory memory{};
  std::unique_ptr<Communicator> child{};
};

struct CallKind {
  const char* name;
  std::size_t count;  // elements
  Status (*call)(Communicator& rank, CallData& data);
  bool (*right)(Communicator& rank, CallData& data);  // after a call that was reported as good
  std::int32_t fails_on = 1;                          // the rank whose allocations fail
  bool in_background = false;                         // a thread of the library may carry it out: either rank's
  bool spares_communicator = false;                   // it fails alone, if each rank's error says so
};
inline std::ostream& operator<<(std::ostream& stream, const CallKind& kind) { return stream << kind.name; }

// Of calls. Short, because many end by it, and an error by it is as good as any other here.
inline constexpr std::chrono::milliseconds kCallTimeout{200};
inline constexpr std::chrono::milliseconds kMakesPeerWait{5};
// Of meetings beside the communicator's calls: agree(), shrink().
inline constexpr std::chrono::milliseconds kMeetingTimeout{200};

inline Communicators make_pair(const WorldKind& world) {
  CommunicatorOptions options;
  options.timeout = kCallTimeout;
  options.setup_timeout = kMeetingTimeout;
  options.transport = world.transport;
  options.attach = world.attach;
  auto made = Communicator::create_all(2, options, world.nodes);
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(*made);
}

// One call on each rank. What the test itself needs is made before, and no rank goes on before all are back.
// n 0: no allocation fails.
class Trial {
 public:
  Trial(Communicators& ranks, const CallKind& kind, std::int64_t n) : ranks_(ranks), kind_(kind), n_(n) {
    for (auto& rank : ranks) {
      CallData& data = data_.emplace_back();
      data.output.resize(kind.count);
      for (std::size_t i = 0; i < kind.count; ++i) data.input.push_back(input_of(rank->rank(), i));
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
    CallData& data = data_.at(static_cast<std::size_t>(rank.rank()));
    const bool fails = rank.rank() == kind_.fails_on;
    if (fails) failing_allocations::fail_after(n_, kind_.in_background);
    meet_.arrive_and_wait();
    Status status = kind_.call(rank, data);
    ended_.at(static_cast<std::size_t>(rank.rank())) = status.ok() ? ErrorScope::kCall : status.error().scope;
    meet_.arrive_and_wait();
    if (fails) failing_allocations::fail_after(0, false);
    meet_.arrive_and_wait();
    if (status.ok() && !kind_.right(rank, data)) return kWrongData;
    if (!status.ok() && status.error().message.empty()) return kNoMessage;
    float one = 1;
    // If both ranks say that only this call failed, the communicator still serves. (Late ranks are a matter of load.)
    const bool serves =
        kind_.spares_communicator && ended_.at(0) == ErrorScope::kCall && ended_.at(1) == ErrorScope::kCall;
    // A rank notices that its peer has announced an abort only while it waits for that peer.
    if (serves && rank.rank() == 1 && !status.ok()) std::this_thread::sleep_for(kMakesPeerWait);
    const Status next = rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);  // comes back, well or not
    if (serves && !next.ok() && next.error().scope >= ErrorScope::kConnection) return kWrongScope;
    return kReached;
  }

  Communicators& ranks_;
  const CallKind& kind_;
  const std::int64_t n_;
  std::deque<CallData> data_;
  std::array<ErrorScope, 2> ended_{};  // the scope of each rank's error; kCall without one
  std::barrier<> meet_{2};
  std::atomic<int> worst_ = kReached;
};

// `warm`: after a call of the same kind.
inline int try_call(const WorldKind& world, const CallKind& kind, bool warm, std::int64_t n) {
  Communicators ranks = make_pair(world);
  if (warm && Trial(ranks, kind, 0).run() != kReached) return kBadTrial;
  const int worst = Trial(ranks, kind, n).run();
  ranks.clear();
  if (worst != kReached) return worst;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

}  // namespace tutti::test
