// Tests Consensus without a network and without a clock. Messages are kept in memory, and time advances by random
// steps that depend on a seed. Ranks join at random times, and are killed between any two messages or stopped for a
// while. Every run must end, and the decisions of the ranks must agree.
#include "membership/consensus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>

namespace tutti::detail {
namespace {

constexpr std::int64_t kTimeoutNs = 1'000'000'000;
constexpr std::int64_t kNever = INT64_MAX;

// State of the fake network: the queued messages, and which ranks are alive.
struct FakeNetwork {
  FakeNetwork(std::uint32_t size, std::uint64_t seed)
      : ranks(size),
        random(seed),
        queues(std::size_t{size} * size),
        alive(size, true),
        quota(size, kNever),
        sent(size),
        closed(size, false) {}
  std::uint32_t ranks;
  std::mt19937_64 random;
  std::vector<std::deque<std::string>> queues;  // indexed by sender * ranks + receiver
  // The vectors that follow are indexed by rank.
  std::vector<bool> alive;
  std::vector<std::int64_t> quota;  // number of messages that the rank may still send before it is killed
  std::vector<std::int64_t> sent;   // number of messages sent in the current run
  // If true, the ranks are on different machines. A rank that has an outcome closes its connections, and its peers
  // cannot distinguish this from the exit of its process.
  bool across_machines = false;
  std::vector<bool> closed;  // true for ranks that have an outcome

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
};

class FakeMessenger final : public ConsensusMessenger {
 public:
  FakeMessenger(FakeNetwork& network, std::uint32_t rank) : network_(network), rank_(rank) {}
  void send(std::uint32_t peer, std::string_view message) override {
    if (!network_.alive[rank_]) return;
    if (network_.quota[rank_] != kNever && network_.quota[rank_]-- == 0) {
      network_.alive[rank_] = false;
      return;
    }
    ++network_.sent[rank_];
    network_.queues[rank_ * network_.ranks + peer].emplace_back(message);
  }
  std::optional<std::string> take(std::uint32_t peer) override {
    auto& queue = network_.queues[peer * network_.ranks + rank_];
    if (queue.empty()) return std::nullopt;
    std::string message = std::move(queue.front());
    queue.pop_front();
    return message;
  }
  bool gone(std::uint32_t peer) override {
    return !network_.alive[peer] || (network_.across_machines && network_.closed[peer]);
  }
  bool always_reachable(std::uint32_t) override { return !network_.across_machines; }

 private:
  FakeNetwork& network_;
  std::uint32_t rank_;
};

// The events that a run injects into one rank. Times are relative to the start of the run.
struct RankScenario {
  std::int64_t join_ns = 0;
  std::int64_t kill_ns = kNever;
  std::int64_t stop_ns = kNever;
  std::int64_t wake_ns = kNever;
  std::int64_t stop_after = kNever;  // stop the rank for pause_ns after it has sent this many messages
  std::int64_t pause_ns = 0;
};

struct RunResult {
  // Outcomes of one decision, indexed by rank; empty for a rank that was killed.
  std::vector<std::optional<Result<ConsensusDecision>>> outcomes;
  std::int64_t last_ns = 0;
};

// A group of ranks that make decisions. It steps one random rank at a time in one thread.
class TestGroup {
 public:
  TestGroup(std::uint32_t ranks, std::uint64_t seed) : network(ranks, seed) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      messengers.push_back(std::make_unique<FakeMessenger>(network, rank));
      participants.push_back(std::make_unique<Consensus>(rank, ranks, *messengers.back()));
    }
  }
  // Makes one decision among all live ranks. A rank is not stepped any more after it has an outcome, because the
  // caller of agree() has returned.
  RunResult run(const std::vector<RankScenario>& scenarios, const std::vector<std::int64_t>& values) {
    RunResult result{.outcomes = std::vector<std::optional<Result<ConsensusDecision>>>(network.ranks)};
    std::vector<bool> begun(network.ranks, false);
    std::vector<std::int64_t> stopped_ns(network.ranks, -1);
    network.sent.assign(network.ranks, 0);
    const std::int64_t start_ns = now_ns;
    while (true) {
      now_ns += 100'000 + static_cast<std::int64_t>(network.below(200'000));
      const std::int64_t at_ns = now_ns - start_ns;
      bool waiting = false;
      for (std::uint32_t rank = 0; rank < network.ranks; ++rank) {
        if (at_ns >= scenarios[rank].kill_ns) network.alive[rank] = false;
        waiting = waiting || (network.alive[rank] && !result.outcomes[rank]);
      }
      if (!waiting) break;
      const auto rank = static_cast<std::uint32_t>(network.below(network.ranks));
      const RankScenario& scenario = scenarios[rank];
      if (stopped_ns[rank] < 0 && network.sent[rank] >= scenario.stop_after) stopped_ns[rank] = at_ns;
      const bool stopped = (at_ns >= scenario.stop_ns && at_ns < scenario.wake_ns) ||
                           (stopped_ns[rank] >= 0 && at_ns < stopped_ns[rank] + scenario.pause_ns);
      if (!network.alive[rank] || result.outcomes[rank] || at_ns < scenario.join_ns || stopped) continue;
      if (!begun[rank]) {
        begun[rank] = true;
        participants[rank]->begin({.operation = 100 + rank, .value = values[rank]}, std::vector<bool>(network.ranks),
                                  kTimeoutNs, now_ns);
      }
      if (!participants[rank]->step(now_ns)) continue;
      result.outcomes[rank] = participants[rank]->outcome();
      network.closed[rank] = true;
      result.last_ns = at_ns;
    }
    return result;
  }

  FakeNetwork network;
  std::vector<std::unique_ptr<FakeMessenger>> messengers;
  std::vector<std::unique_ptr<Consensus>> participants;
  std::int64_t now_ns = 1;
};

bool overlap(const ConsensusDecision& a, const ConsensusDecision& b) {
  for (std::size_t i = 0; i < a.members.size(); ++i) {
    if (a.members[i] && b.members[i]) return true;
  }
  return false;
}

std::vector<std::int64_t> some_values(FakeNetwork& network) {
  std::vector<std::int64_t> values;
  for (std::uint32_t rank = 0; rank < network.ranks; ++rank)
    values.push_back(static_cast<std::int64_t>(network.below(50)));
  return values;
}

TEST(Consensus, AllThatLiveAgreeWhereNobodyDies) {
  for (const std::uint32_t ranks : {2u, 3u, 5u, 17u, 70u}) {
    TestGroup group(ranks, ranks);
    for (int round = 0; round < 5; ++round) {
      const auto values = some_values(group.network);
      const RunResult result = group.run(std::vector<RankScenario>(ranks), values);
      for (const auto& outcome : result.outcomes) {
        ASSERT_TRUE(outcome->ok()) << to_string(outcome->error());
        EXPECT_EQ((*outcome)->members, std::vector<bool>(ranks, true));
        EXPECT_EQ((*outcome)->value, *std::min_element(values.begin(), values.end()));
        EXPECT_EQ((*outcome)->operation, 100u);
      }
    }
  }
}

// Kills ranks after any message and at any time, over several decisions in a row. All live ranks must make the same
// decision, and it must include them. At most three ranks are killed in one decision, because the death of the four
// lowest ranks could prevent a decision.
TEST(Consensus, WhoeverDiesWhenever) {
  int killed_inside = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const std::uint32_t ranks = 2 + static_cast<std::uint32_t>(seed % 7);
    TestGroup group(ranks, seed);
    for (int round = 0; round < 3; ++round) {
      std::vector<RankScenario> scenarios(ranks);
      const std::vector<bool> before = group.network.alive;
      std::uint32_t victims = 0;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        scenarios[rank].join_ns = static_cast<std::int64_t>(group.network.below(300'000'000));
        if (!before[rank] || victims == 3 || group.network.below(3) != 0) continue;
        ++victims;
        if (group.network.below(2) == 0) {
          scenarios[rank].kill_ns = static_cast<std::int64_t>(group.network.below(330'000'000));
        } else {
          group.network.quota[rank] = static_cast<std::int64_t>(group.network.below(6 * ranks));
        }
      }
      const auto values = some_values(group.network);
      const RunResult result = group.run(scenarios, values);
      for (auto& quota : group.network.quota) quota = kNever;
      const ConsensusDecision* first = nullptr;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const auto& outcome = result.outcomes[rank];
        killed_inside += before[rank] && !group.network.alive[rank] ? 1 : 0;
        if (!outcome) continue;
        ASSERT_TRUE(outcome->ok()) << "seed " << seed << " rank " << rank << ": " << to_string(outcome->error());
        const ConsensusDecision& decision = **outcome;
        if (first == nullptr) first = &decision;
        ASSERT_EQ(decision, *first) << "seed " << seed << " rank " << rank;
        for (std::uint32_t other = 0; other < ranks; ++other) {
          ASSERT_FALSE(decision.members[other] && !before[other])
              << "seed " << seed << ": rank " << other << " is dead";
          if (!decision.members[other]) {
            ASSERT_FALSE(group.network.alive[other]) << "seed " << seed;
          } else {
            ASSERT_LE(decision.value, values[other]);
          }
        }
      }
      ASSERT_LT(result.last_ns, 900'000'000)
          << "seed " << seed << ": a rank waited for the full timeout because of a death";
    }
  }
  EXPECT_GT(killed_inside, 4000);
}

// Kills one rank after each possible number of messages, while the ranks are on different machines. The other ranks can
// see that the connection of the victim has ended if it has joined before. `ranks` messages are enough for that,
// because the victim may first answer kJoin of each other rank. The others must decide without it at once, in whichever
// phase it died, and not wait for the timeout.
TEST(Consensus, ADeathOnAnotherMachineCostsNoTimeout) {
  constexpr std::int64_t kMostMessages = 12;  // more than a rank sends in one decision of four ranks
  int killed = 0;
  for (const std::uint32_t ranks : {2u, 3u, 4u}) {
    for (std::uint32_t victim = 0; victim < ranks; ++victim) {
      for (std::int64_t messages = ranks; messages <= kMostMessages; ++messages) {
        SCOPED_TRACE(testing::Message() << "rank " << victim << " of " << ranks << " dies after " << messages
                                        << " messages");
        TestGroup group(ranks, static_cast<std::uint64_t>(messages));
        group.network.across_machines = true;
        group.network.quota[victim] = messages;
        const RunResult result = group.run(std::vector<RankScenario>(ranks), some_values(group.network));
        killed += group.network.alive[victim] ? 0 : 1;
        const ConsensusDecision* first = nullptr;
        for (const auto& outcome : result.outcomes) {
          if (!outcome) continue;
          ASSERT_TRUE(outcome->ok()) << to_string(outcome->error());
          if (first == nullptr) first = &**outcome;
          EXPECT_EQ(**outcome, *first);
        }
        EXPECT_LT(result.last_ns, kTimeoutNs / 20) << "a rank waited because of the death";
      }
    }
  }
  EXPECT_GT(killed, 20);
}

// Stops ranks for longer than the timeout, at random times, and kills others. Two ranks must get the same decision,
// or decisions without common members. Every rank must get an outcome in time.
void run_with_stopped_ranks(bool across_machines) {
  int agreed = 0;
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const std::uint32_t ranks = 2 + static_cast<std::uint32_t>(seed % 6);
    TestGroup group(ranks, seed);
    group.network.across_machines = across_machines;
    std::vector<RankScenario> scenarios(ranks);
    for (RankScenario& scenario : scenarios) {
      scenario.join_ns = static_cast<std::int64_t>(group.network.below(300'000'000));
      const auto draw = group.network.below(4);
      if (draw == 0) scenario.kill_ns = static_cast<std::int64_t>(group.network.below(2'000'000'000));
      if (draw == 2) scenario.stop_after = static_cast<std::int64_t>(group.network.below(5 * ranks));
      scenario.pause_ns = kTimeoutNs * 9 / 10 + static_cast<std::int64_t>(group.network.below(400'000'000));
      if (draw != 1) continue;
      scenario.stop_ns = static_cast<std::int64_t>(group.network.below(400'000'000));
      scenario.wake_ns = scenario.stop_ns + static_cast<std::int64_t>(group.network.below(5'000'000'000));
    }
    const RunResult result = group.run(scenarios, some_values(group.network));
    ASSERT_LT(result.last_ns, 11'000'000'000) << "seed " << seed;
    for (const auto& one : result.outcomes) {
      if (!one) continue;
      one->ok() ? ++agreed : ++failed;
      for (const auto& other : result.outcomes) {
        if (!one->ok() || !other || !other->ok() || **one == **other) continue;
        ASSERT_FALSE(overlap(**one, **other)) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(agreed, 6000);
  EXPECT_LT(failed, agreed) << "most runs should end with a decision";
}

TEST(Consensus, WhoeverIsStopped) { run_with_stopped_ranks(false); }
TEST(Consensus, WhoeverIsStoppedAcrossMachines) { run_with_stopped_ranks(true); }

// A rank that joins after the timeout is excluded. It gets an error, and it takes part in the next decision.
TEST(Consensus, WhoComesTooLateIsToldAndComesBack) {
  TestGroup group(4, 1);
  std::vector<RankScenario> scenarios(4);
  scenarios[0].join_ns = 3'000'000'000;
  const RunResult result = group.run(scenarios, {1, 2, 3, 4});
  ASSERT_FALSE(result.outcomes[0]->ok());
  EXPECT_EQ(result.outcomes[0]->error().code, ErrorCode::kRefused);
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    ASSERT_TRUE(result.outcomes[rank]->ok());
    EXPECT_EQ((**result.outcomes[rank]).members, (std::vector<bool>{false, true, true, true}));
    EXPECT_EQ((**result.outcomes[rank]).value, 2);
  }
  const RunResult again = group.run(std::vector<RankScenario>(4), {1, 2, 3, 4});
  for (const auto& outcome : again.outcomes) {
    ASSERT_TRUE(outcome->ok());
    EXPECT_EQ((*outcome)->members, std::vector<bool>(4, true));
  }
}

TEST(Consensus, GarbageChangesNothing) {
  TestGroup group(3, 7);
  for (int i = 0; i < 2000; ++i) {
    std::string garbage(group.network.below(60), '\0');
    for (char& byte : garbage) byte = static_cast<char>(group.network.below(256));
    if (i % 2 == 0) {
      garbage.resize(49);
      garbage.replace(0, 16, std::string("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16));
      garbage[0] = static_cast<char>(9 + group.network.below(200));  // not a valid message type
    }
    group.network.queues[group.network.below(3) * 3 + group.network.below(3)].push_back(garbage);
  }
  const RunResult result = group.run(std::vector<RankScenario>(3), {1, 2, 3});
  for (const auto& outcome : result.outcomes) {
    ASSERT_TRUE(outcome->ok()) << to_string(outcome->error());
    EXPECT_EQ((*outcome)->members, std::vector<bool>(3, true));
  }
}

}  // namespace
}  // namespace tutti::detail
