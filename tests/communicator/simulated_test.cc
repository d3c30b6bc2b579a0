// Tests the production runtime, executor and algorithms under a simulated clock and network. A seed determines each
// run.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

#include "communicator/communicator_impl.h"
#include "communicator/support.h"
#include "transports/sim/sim_environment.h"

namespace tutti::test {
namespace {

struct Outcome {
  std::vector<std::vector<float>> results;
  std::vector<std::string> errors;
  std::uint64_t fingerprint = 0;
  std::int64_t end_ns = 0;
  bool operator==(const Outcome&) const = default;
};

// Every rank runs `calls` all_reduce calls. If `absent` is a rank, it runs none, and stays until the others have
// timed out.
Outcome simulate(const SimOptions& options, Algorithm algorithm, std::size_t count, std::int32_t absent = -1,
                 bool registered = false) {
  SimEnvironment sim(options);
  Outcome outcome;
  outcome.results.resize(options.ranks);
  outcome.errors.resize(options.ranks);
  const auto plan_cache = std::make_shared<VerifiedPlanCache>(true);
  sim.run([&](std::uint32_t rank) {
    Environment environment{.clock = sim.clock(),
                            .waiter = sim.waiter(rank),
                            .transport = sim.transport(rank),
                            .plan_cache = plan_cache,
                            .log = Log(LogLevel::kOff, 0)};
    const auto clock = environment.clock;
    const auto waiter = sim.waiter(rank);
    detail::CommunicatorImpl communicator({.rank = rank, .ranks = options.ranks}, std::move(environment),
                                          std::chrono::seconds(10));
    if (static_cast<std::int32_t>(rank) == absent) {
      Idle idle;
      const auto spare = sim.transport(rank);
      while (clock->now_ns() < 30'000'000'000) waiter->pause(idle, spare->doorbell(), 30'000'000'000);
      return;
    }
    Memory memory;
    std::vector<float> plain(count);
    if (registered) memory = communicator.allocate(count * sizeof(float)).value();
    const std::span<float> data(registered ? reinterpret_cast<float*>(memory.data()) : plain.data(), count);
    for (int call = 0; call < 3; ++call) {
      for (std::size_t i = 0; i < count; ++i)
        data[i] = 1.0f / static_cast<float>(1 + i + rank * 31 + static_cast<std::size_t>(call));
      const Status status =
          communicator.run({.input = data.data(), .output = data.data(), .count = count}, with(algorithm));
      if (!status.ok()) {
        outcome.errors[rank] = to_string(status.error());
        return;
      }
    }
    outcome.results[rank].assign(data.begin(), data.end());
  });
  outcome.fingerprint = sim.fingerprint();
  outcome.end_ns = sim.now_ns();
  return outcome;
}

// The simulated network writes into the outputs. Only the rank itself has the addresses of its blocks, and long
// sends consist of many messages.
TEST(Simulated, WhatIsWrittenIntoOutputsStandsWhereItIsWanted) {
  constexpr std::uint32_t kRanks = 3;
  const std::vector<std::size_t> counts = {3000, 5, 7000};
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllGather)) {
    SimEnvironment sim({.seed = 7, .ranks = kRanks, .writes_outputs = true});
    const auto plan_cache = std::make_shared<VerifiedPlanCache>(true);
    sim.run([&](std::uint32_t rank) {
      Environment environment{.clock = sim.clock(),
                              .waiter = sim.waiter(rank),
                              .transport = sim.transport(rank),
                              .plan_cache = plan_cache,
                              .log = Log(LogLevel::kOff, 0)};
      auto communicator = detail::CommunicatorImpl::wrap(std::make_unique<detail::CommunicatorImpl>(
          detail::Membership{.rank = rank, .ranks = kRanks}, std::move(environment), std::chrono::seconds(10)));
      for (const std::size_t gap : {std::size_t{0}, std::size_t{11 + rank}}) {
        BlockCounts blocks{.counts = counts};
        std::vector<std::size_t> starts;
        std::size_t at = 0;
        for (const std::size_t count : counts) {
          starts.push_back(at += gap);
          at += count;
        }
        if (gap > 0) blocks.displacements = starts;
        const std::vector<float> own(counts[rank], static_cast<float>(rank + 1));
        std::vector<float> whole(at, -1.0f);
        const Status gathered =
            communicator->all_gather_v(own.data(), whole.data(), blocks, DataType::kFloat32, with(algorithm));
        ASSERT_TRUE(gathered.ok()) << to_string(gathered.error());
        for (std::uint32_t r = 0; r < kRanks; ++r) {
          EXPECT_EQ(
              std::count(whole.begin() + static_cast<std::ptrdiff_t>(starts[r]),
                         whole.begin() + static_cast<std::ptrdiff_t>(starts[r] + counts[r]), static_cast<float>(r + 1)),
              static_cast<std::ptrdiff_t>(counts[r]))
              << to_string(algorithm) << ", gap " << gap << ", block " << r;
        }
      }
    });
    EXPECT_EQ(sim.refused_writes(), 0u);
  }
}

TEST(Simulated, TwoRanksAllReduceAndASeedReplaysExactly) {
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    std::set<std::uint64_t> fingerprints;
    std::set<std::vector<float>> results;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const Outcome outcome = simulate({.seed = seed, .ranks = 2}, algorithm, 5000);
      EXPECT_EQ(outcome.errors, std::vector<std::string>(2)) << "seed " << seed;
      EXPECT_EQ(outcome, simulate({.seed = seed, .ranks = 2}, algorithm, 5000))
          << "seed " << seed << " does not replay";
      EXPECT_GT(outcome.end_ns, 1'000);
      fingerprints.insert(outcome.fingerprint);
      results.insert(outcome.results.begin(), outcome.results.end());
    }
    EXPECT_EQ(fingerprints.size(), 20u) << "seeds must differ in their interleavings";
    EXPECT_EQ(results.size(), 1u) << "but never in the bits of the result";
  }
}

TEST(Simulated, MoreRanksWithFewestCreditsAndLongDelaysStillEnd) {
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const Outcome outcome =
          simulate({.seed = seed, .ranks = 5, .max_latency_ns = 5'000'000, .slots = 2}, algorithm, 9000);
      EXPECT_EQ(outcome.errors, std::vector<std::string>(5)) << "seed " << seed << " " << to_string(algorithm);
      for (const auto& result : outcome.results) EXPECT_EQ(result, outcome.results[0]);
    }
  }
}

// Values are read and stored in place, with delays that no real machine would have. The bits must be those of the
// run without registered memory.
TEST(Simulated, RegisteredMemoryGivesTheSameBitsWhateverTheDelays) {
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    const Outcome staged = simulate({.seed = 1, .ranks = 4}, algorithm, 6000);
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const Outcome outcome =
          simulate({.seed = seed, .ranks = 4, .max_latency_ns = 3'000'000}, algorithm, 6000, -1, true);
      EXPECT_EQ(outcome.errors, std::vector<std::string>(4)) << "seed " << seed;
      EXPECT_EQ(outcome.results, staged.results) << "seed " << seed << " " << to_string(algorithm);
    }
  }
}

TEST(Simulated, ExhaustedMemoryIsAnErrorOfTheCall) {
  SimEnvironment sim({.seed = 1, .ranks = 1, .memory_bytes = 10'000});
  sim.run([&](std::uint32_t rank) {
    Environment environment{.clock = sim.clock(),
                            .waiter = sim.waiter(rank),
                            .transport = sim.transport(rank),
                            .plan_cache = std::make_shared<VerifiedPlanCache>(true),
                            .log = Log(LogLevel::kOff, 0)};
    detail::CommunicatorImpl communicator({.rank = rank, .ranks = 1}, std::move(environment), std::chrono::seconds(10));
    auto first = communicator.allocate(8000);
    EXPECT_TRUE(first.ok());
    auto second = communicator.allocate(8000);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, ErrorCode::kSystem);
    EXPECT_EQ(second.error().scope, ErrorScope::kCall);
    first = Error{};
    EXPECT_TRUE(communicator.allocate(8000).ok());
  });
}

TEST(Simulated, AnAbsentRankIsNamedWhenTheSimulatedDeadlinePasses) {
  const Outcome outcome = simulate({.seed = 7, .ranks = 3}, Algorithm::kTwoShot, 100, 1);
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_NE(outcome.errors[rank].find("timeout"), std::string::npos) << outcome.errors[rank];
    EXPECT_NE(outcome.errors[rank].find("rank 1"), std::string::npos) << outcome.errors[rank];
  }
  EXPECT_GE(outcome.end_ns, 10'000'000'000);
}

// Rank 0 reports that it has finished the call, and leaves. Its messages never arrive, as over a broken network.
// Rank 1 must then fail long before its deadline.
TEST(Simulated, WhatAPeerHasSentAndThenLeftIsNotAwaitedUntilTheDeadline) {
  for (const bool later_failure : {false, true}) {
    SimEnvironment sim({.seed = 3, .ranks = 2});
    Status status;
    std::int64_t end_ns = 0;
    sim.run([&](std::uint32_t rank) {
      const auto clock = sim.clock();
      if (rank == 0) {
        const auto transport = sim.transport(0);
        const auto waiter = sim.waiter(0);
        Idle idle;
        while (!transport->peer_call(1, 1)) waiter->pause(idle, transport->doorbell(), 1'000'000);
        CallTag tag = *transport->peer_call(1, 1);
        transport->enter_call(tag, {});
        transport->leave_call(tag, std::nullopt);
        if (later_failure) {
          ++tag.sequence;
          transport->enter_call(tag, {});
          transport->leave_call(tag, CallFailure{.code = ErrorCode::kPeerLost, .culprit = 1});
          while (clock->now_ns() < 20'000'000'000) waiter->pause(idle, transport->doorbell(), 1'000'000'000);
        }
        transport->announce_leave();
        return;
      }
      Environment environment{.clock = sim.clock(),
                              .waiter = sim.waiter(rank),
                              .transport = sim.transport(rank),
                              .plan_cache = std::make_shared<VerifiedPlanCache>(true),
                              .log = Log(LogLevel::kOff, 0)};
      detail::CommunicatorImpl communicator({.rank = rank, .ranks = 2}, std::move(environment),
                                            std::chrono::seconds(30));
      std::vector<float> data(5000);
      status =
          communicator.run({.input = data.data(), .output = data.data(), .count = 5000}, with(Algorithm::kTwoShot));
      end_ns = clock->now_ns();
    });
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
    EXPECT_EQ(status.error().rank, 0);
    EXPECT_NE(status.error().message.find("rank 0 has finished this call"), std::string::npos)
        << status.error().message;
    EXPECT_GE(end_ns, 2'000'000'000);
    EXPECT_LT(end_ns, 3'000'000'000);
  }
}

// The root passes a greater count than the others. Their outputs are in windows that are long enough for it, so only
// a check can prevent that more than `kCount` elements are stored.
TEST(Simulated, RanksThatDisagreeStoreNothingBehindEachOthersOutputs) {
  constexpr std::size_t kCount = 5;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimEnvironment sim({.seed = seed, .ranks = 4});
    const auto plan_cache = std::make_shared<VerifiedPlanCache>(true);
    sim.run([&](std::uint32_t rank) {
      Environment environment{.clock = sim.clock(),
                              .waiter = sim.waiter(rank),
                              .transport = sim.transport(rank),
                              .plan_cache = plan_cache,
                              .log = Log(LogLevel::kOff, 0)};
      detail::CommunicatorImpl communicator({.rank = rank, .ranks = 4}, std::move(environment),
                                            std::chrono::seconds(10));
      const Memory memory = communicator.allocate(64 * sizeof(double)).value();
      auto* const data = reinterpret_cast<double*>(memory.data());
      std::fill_n(data, 64, -1.0);
      const std::vector<double> input(4 * (kCount + 1), 1.0);
      const Status status = communicator.run({.kind = CollectiveKind::kScatter,
                                              .input = rank == 3 ? input.data() : nullptr,
                                              .output = data,
                                              .count = rank == 3 ? kCount + 1 : kCount,
                                              .type = DataType::kFloat64,
                                              .root = 3},
                                             with(Algorithm::kBinomial));
      if (rank == 3) return;
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(data[kCount], -1.0) << "seed " << seed << " rank " << rank;
    });
  }
}

}  // namespace
}  // namespace tutti::test
