// Trials (see tests/support/allocation_sweep.h) of one call on a communicator of two ranks.
#pragma once

#include "communicator/support.h"
#include "support/allocation_sweep.h"

namespace tutti::test {

// The arguments and results of a call on one rank.
struct CallData {
  std::vector<float> input, output;
  Group group{};
  Agreement agreement{};
  Memory memory{};
  std::unique_ptr<Communicator> child{};
};

// A call that is tested.
struct CallKind {
  const char* name;
  std::size_t count;  // number of elements
  Status (*call)(Communicator& rank, CallData& data);
  // true if the result is right; used only if the call has succeeded
  bool (*right)(Communicator& rank, CallData& data);
  std::int32_t fails_on = 1;   // the rank on which allocations fail
  bool in_background = false;  // a library thread of either rank may execute the call
  // only the call fails, provided that the errors of both ranks have ErrorScope::kCall
  bool spares_communicator = false;
};
inline std::ostream& operator<<(std::ostream& stream, const CallKind& kind) { return stream << kind.name; }

// Timeout of collectives, sends and receives. It is short because many trials end with it. A timeout error is as
// acceptable as any other error in these tests.
inline constexpr std::chrono::milliseconds kCallTimeout{200};
inline constexpr std::chrono::milliseconds kMakesPeerWait{5};
// Timeout of agree() and shrink(), which exchange messages outside the connections of the communicator.
inline constexpr std::chrono::milliseconds kMeetingTimeout{200};

inline Communicators make_pair(const JobConfiguration& world) {
  CommunicatorOptions options;
  options.timeout = kCallTimeout;
  options.setup_timeout = kMeetingTimeout;
  options.transport = world.transport;
  options.attach = world.attach;
  auto made = Communicator::create_all(2, options, world.nodes);
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(*made);
}

// Makes one call on each rank. The buffers of the test are allocated before the call, so that only allocations of
// the library fail. All ranks wait for each other before and after the call. If n is 0, no allocation fails.
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
    // If both ranks report that only this call failed, the communicator must still be usable. Timeouts are accepted,
    // because a rank may be late on a loaded machine.
    const bool serves =
        kind_.spares_communicator && ended_.at(0) == ErrorScope::kCall && ended_.at(1) == ErrorScope::kCall;
    // A rank notices that its peer has announced an abort only while it waits for that peer.
    if (serves && rank.rank() == 1 && !status.ok()) std::this_thread::sleep_for(kMakesPeerWait);
    // must return; its result is checked below
    const Status next = rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);
    if (serves && !next.ok() && next.error().scope >= ErrorScope::kConnection) return kWrongScope;
    return kReached;
  }

  Communicators& ranks_;
  const CallKind& kind_;
  const std::int64_t n_;
  std::deque<CallData> data_;
  std::array<ErrorScope, 2> ended_{};  // scope of each rank's error; kCall if it had no error
  std::barrier<> meet_{2};
  std::atomic<int> worst_ = kReached;
};

// If `warm`, the ranks make a successful call of the same kind first.
inline int try_call(const JobConfiguration& world, const CallKind& kind, bool warm, std::int64_t n) {
  Communicators ranks = make_pair(world);
  if (warm && Trial(ranks, kind, 0).run() != kReached) return kBadTrial;
  const int worst = Trial(ranks, kind, n).run();
  ranks.clear();
  if (worst != kReached) return worst;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

}  // namespace tutti::test
