// Tests abort() from another thread while the rank is in any kind of call. abort() and the call must both return
// long before the deadline of the call. Each test prints the longest time of both.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator/support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// abort() and the aborted call should take less than a second. The limit is larger, because the machine may be busy.
const milliseconds kSoon = patience();
const milliseconds kDeadline = 4 * kSoon;

// A state in which abort() is tested: a call of rank 0 that waits for its peers, which make no calls.
struct State {
  const char* name;
  std::function<Status(Communicator&)> wait;
  bool confirmed = false;  // with kAll: the call ends when the ranks have agreed on its outcome
};

template <class T>
Status status_of_result(const Result<T>& result) {
  return result.ok() ? Status() : Status(result.error());
}

const std::vector<State>& states() {
  static std::vector<float> data(4'000'000);
  static float word = 1;
  static const std::vector<State> all = {
      {"AShortSum",
       [](Communicator& rank) { return rank.all_reduce(&word, &word, 1, DataType::kFloat32, ReduceOp::kSum); }, true},
      {"ALongSum",
       [](Communicator& rank) {
         return rank.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
       },
       true},
      {"ASumInRegisteredMemory",
       [](Communicator& rank) {
         auto memory = rank.allocate(data.size() * sizeof(float));
         if (!memory.ok()) return Status(memory.error());
         return rank.all_reduce(memory->data(), memory->data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
       },
       true},
      {"ABroadcastThatWaitsForItsRoot",
       [](Communicator& rank) { return rank.broadcast(data.data(), data.data(), 1000, DataType::kFloat32, 1); }, true},
      {"ABroadcastFromHere",
       [](Communicator& rank) { return rank.broadcast(data.data(), data.data(), data.size(), DataType::kFloat32, 0); },
       true},
      {"ABarrier", [](Communicator& rank) { return rank.barrier(); }, true},
      {"ABarrierWithAChecksum",
       [](Communicator& rank) {
         CallOptions options;
         options.checksum = true;
         return rank.barrier(options);
       },
       true},
      {"AReceive", [](Communicator& rank) { return rank.receive(data.data(), 10, DataType::kFloat32, 1); }},
      {"ASend", [](Communicator& rank) { return rank.send(data.data(), data.size(), DataType::kFloat32, 1); }},
      {"AGroup",
       [](Communicator& rank) {
         Group group;
         const Status send = group.send(rank, data.data(), 10, DataType::kFloat32, 1);
         const Status receive = group.receive(rank, data.data() + 10, 10, DataType::kFloat32, 1);
         return send.ok() && receive.ok() ? group.run() : send;
       }},
      {"AWork",
       [](Communicator& rank) {
         auto work = start_sum(rank, data.data(), data.data(), data.size());
         return work.ok() ? work->wait() : Status(work.error());
       }},
      {"FinalizeBehindAWork",
       [](Communicator& rank) {
         auto work = start_sum(rank, data.data(), data.data(), 1000);
         if (!work.ok()) return Status(work.error());
         static_cast<void>(rank.finalize());
         return work->wait();
       }},
      {"ASplit", [](Communicator& rank) { return status_of_result(rank.split(0)); }},
      {"ADuplicate", [](Communicator& rank) { return status_of_result(rank.duplicate()); }},
  };
  return all;
}

class AbortStates : public testing::TestWithParam<JobConfiguration> {};

TEST_P(AbortStates, EndWhateverWaitsFromAnyThread) {
  for (const bool uniform : {false, true}) {
    for (const State& state : states()) {
      if (uniform && !state.confirmed) continue;
      SCOPED_TRACE(std::string(state.name) + (uniform ? ", uniform" : ""));
      CommunicatorOptions options;
      options.timeout = kDeadline;
      options.setup_timeout = kDeadline;
      options.transport = GetParam().transport;
      options.attach = GetParam().attach;
      options.uniform = uniform ? UniformCalls::kAll : UniformCalls::kNone;
      if (GetParam().checksum) options.checksum = true;
      auto ranks = Communicator::create_all(3, options, GetParam().nodes);
      ASSERT_TRUE(ranks.ok()) << to_string(ranks.error());
      Communicator& rank = *(*ranks)[0];
      Status ended;
      Clock::time_point end;
      std::thread waiting([&] {
        ended = state.wait(rank);
        end = Clock::now();
      });
      // usually the call waits by now; an earlier abort gives the same result
      std::this_thread::sleep_for(milliseconds(30));
      const auto begin = Clock::now();
      std::thread([&] { rank.abort(); }).join();
      const auto returned = Clock::now();
      rank.abort();  // a second abort() has no effect
      std::vector<std::thread> others;
      for (const std::size_t other : {1u, 2u}) {
        others.emplace_back(
            [&, other] { EXPECT_NE(sum_fails(*(*ranks)[other], {}), "") << "the peers must learn of the abort"; });
      }
      waiting.join();
      for (std::thread& other : others) other.join();
      EXPECT_LT(returned - begin, kSoon);
      EXPECT_LT(end - begin, kSoon);
      ASSERT_FALSE(ended.ok());
      EXPECT_EQ(ended.error().code, ErrorCode::kAborted) << to_string(ended.error());
      RecordProperty("returned_us", std::to_string((returned - begin) / std::chrono::microseconds(1)));
      RecordProperty("ended_us", std::to_string((end - begin) / std::chrono::microseconds(1)));
    }
  }
}

// agree() and shrink() are used after an abort, so abort() returns at once and does not end them.
TEST_P(AbortStates, DoesNotDisturbAnAgreementOrAShrink) {
  Communicators ranks = make_configured_ranks(GetParam(), 3, kDeadline);
  std::atomic<int> agreed = 0;
  std::thread killer([&] {
    while (agreed == 0) std::this_thread::sleep_for(milliseconds(1));
    const auto begin = Clock::now();
    for (auto& rank : ranks) rank->abort();
    EXPECT_LT(Clock::now() - begin, kSoon);
  });
  on_every_rank(ranks, [&](Communicator& rank) {
    for (int i = 0; i < 3; ++i) {
      if (rank.rank() == 2 && i == 1) ++agreed;
      auto agreement = rank.agree();
      ASSERT_TRUE(agreement.ok()) << to_string(agreement.error());
      EXPECT_EQ(agreement->survivors.size(), 3u);
    }
    auto child = rank.shrink();
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    EXPECT_TRUE(sum_is_right(**child, 1000));
  });
  killer.join();
}

std::vector<JobConfiguration> all_worlds() {
  std::vector<JobConfiguration> configurations(std::begin(kConfigurations), std::end(kConfigurations));
  configurations.push_back(kAttachedConfigurations[0]);
  configurations.push_back(kChecksumConfigurations[0]);
  return configurations;
}
INSTANTIATE_TEST_SUITE_P(Worlds, AbortStates, testing::ValuesIn(all_worlds()),
                         [](const auto& world) { return std::string(world.param.name); });

}  // namespace
}  // namespace tutti::test
