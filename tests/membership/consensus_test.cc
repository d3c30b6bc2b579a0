// The consensus alone, over a post in memory, in time that a seed makes: ranks come when they like, are killed between
// any two messages, and stopped. Every run ends; what is decided fits together.
#include "membership/consensus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>

namespace tutti::detail {
namespace {

constexpr std::int64_t kPatienceNs = 1'000'000'000;
constexpr std::int64_t kNever = INT64_MAX;

struct World {
  World(std::uint32_t size, std::uint64_t seed)
      : ranks(size),
        random(seed),
        queues(std::size_t{size} * size),
        alive(size, true),
        quota(size, kNever),
        sent(size),
        left(size, false) {}
  std::uint32_t ranks;
  std::mt19937_64 random;
  std::vector<std::deque<std::string>> queues;  // by sender and receiver
  std::vector<bool> alive;
  std::vector<std::int64_t> quota;  // messages that a rank may still send before it is killed
  std::vector<std::int64_t> sent;   // messages, by rank
  bool by_lines = false;            // as across machines: who has an outcome hangs up, which looks like its end
  std::vector<bool> left;           // who has; by rank

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
};

class Post final : public ConsensusMessenger {
 public:
  Post(World& world, std::uint32_t rank) : world_(world), rank_(rank) {}
  void send(std::uint32_t peer, std::string_view message) override {
    if (!world_.alive[rank_]) return;
    if (world_.quota[rank_] != kNever && world_.quota[rank_]-- == 0) {
      world_.alive[rank_] = false;
      return;
    }
    ++world_.sent[rank_];
    world_.queues[rank_ * world_.ranks + peer].emplace_back(message);
  }
  std::optional<std::string> take(std::uint32_t peer) override {
    auto& queue = world_.queues[peer * world_.ranks + rank_];
    if (queue.empty()) return std::nullopt;
    std::string message = std::move(queue.front());
    queue.pop_front();
    return message;
  }
  bool gone(std::uint32_t peer) override { return !world_.alive[peer] || (world_.by_lines && world_.left[peer]); }
  bool direct(std::uint32_t) override { return !world_.by_lines; }

 private:
  World& world_;
  std::uint32_t rank_;
};

struct Fate {
  std::int64_t comes_ns = 0;
  std::int64_t kill_ns = kNever;
  std::int64_t stop_ns = kNever;
  std::int64_t wake_ns = kNever;
  std::int64_t stop_after = kNever;  // so many messages, for pause_ns
  std::int64_t pause_ns = 0;
};

struct Ended {
  std::vector<std::optional<Result<ConsensusDecision>>> outcomes;  // of one agreement, by rank
  std::int64_t last_ns = 0;
};

class Jury {
 public:
  Jury(std::uint32_t ranks, std::uint64_t seed) : world(ranks, seed) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      posts.push_back(std::make_unique<Post>(world, rank));
      participants.push_back(std::make_unique<Consensus>(rank, ranks, *posts.back()));
    }
  }
  // One agreement of all that live. Nobody is stepped once it has an outcome: it has gone its way.
  Ended run(const std::vector<Fate>& fates, const std::vector<std::int64_t>& values) {
    Ended ended{.outcomes = std::vector<std::optional<Result<ConsensusDecision>>>(world.ranks)};
    std::vector<bool> begun(world.ranks, false);
    std::vector<std::int64_t> stopped_ns(world.ranks, -1);
    world.sent.assign(world.ranks, 0);
    const std::int64_t start_ns = now_ns;
    while (true) {
      now_ns += 100'000 + static_cast<std::int64_t>(world.below(200'000));
      const std::int64_t at_ns = now_ns - start_ns;
      bool waiting = false;
      for (std::uint32_t rank = 0; rank < world.ranks; ++rank) {
        if (at_ns >= fates[rank].kill_ns) world.alive[rank] = false;
        waiting = waiting || (world.alive[rank] && !ended.outcomes[rank]);
      }
      if (!waiting) break;
      const auto rank = static_cast<std::uint32_t>(world.below(world.ranks));
      const Fate& fate = fates[rank];
      if (stopped_ns[rank] < 0 && world.sent[rank] >= fate.stop_after) stopped_ns[rank] = at_ns;
      const bool stopped = (at_ns >= fate.stop_ns && at_ns < fate.wake_ns) ||
                           (stopped_ns[rank] >= 0 && at_ns < stopped_ns[rank] + fate.pause_ns);
      if (!world.alive[rank] || ended.outcomes[rank] || at_ns < fate.comes_ns || stopped) continue;
      if (!begun[rank]) {
        begun[rank] = true;
        participants[rank]->begin({.operation = 100 + rank, .value = values[rank]}, std::vector<bool>(world.ranks),
                                  kPatienceNs, now_ns);
      }
      if (!participants[rank]->step(now_ns)) continue;
      ended.outcomes[rank] = participants[rank]->outcome();
      world.left[rank] = true;
      ended.last_ns = at_ns;
    }
    return ended;
  }

  World world;
  std::vector<std::unique_ptr<Post>> posts;
  std::vector<std::unique_ptr<Consensus>> participants;
  std::int64_t now_ns = 1;
};

bool overlap(const ConsensusDecision& a, const ConsensusDecision& b) {
  for (std::size_t i = 0; i < a.members.size(); ++i) {
    if (a.members[i] && b.members[i]) return true;
  }
  return false;
}

std::vector<std::int64_t> some_values(World& world) {
  std::vector<std::int64_t> values;
  for (std::uint32_t rank = 0; rank < world.ranks; ++rank) values.push_back(static_cast<std::int64_t>(world.below(50)));
  return values;
}

TEST(Consensus, AllThatLiveAgreeWhereNobodyDies) {
  for (const std::uint32_t ranks : {2u, 3u, 5u, 17u, 70u}) {
    Jury jury(ranks, ranks);
    for (int round = 0; round < 5; ++round) {
      const auto values = some_values(jury.world);
      const Ended ended = jury.run(std::vector<Fate>(ranks), values);
      for (const auto& outcome : ended.outcomes) {
        ASSERT_TRUE(outcome->ok()) << to_string(outcome->error());
        EXPECT_EQ((*outcome)->members, std::vector<bool>(ranks, true));
        EXPECT_EQ((*outcome)->value, *std::min_element(values.begin(), values.end()));
        EXPECT_EQ((*outcome)->operation, 100u);
      }
    }
  }
}

// Kills at any message and at any time, several agreements in a row: those that live always agree, on themselves at
// least, and only the lowest four at once could keep them from it.
TEST(Consensus, WhoeverDiesWhenever) {
  int killed_inside = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const std::uint32_t ranks = 2 + static_cast<std::uint32_t>(seed % 7);
    Jury jury(ranks, seed);
    for (int round = 0; round < 3; ++round) {
      std::vector<Fate> fates(ranks);
      const std::vector<bool> before = jury.world.alive;
      std::uint32_t victims = 0;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        fates[rank].comes_ns = static_cast<std::int64_t>(jury.world.below(300'000'000));
        if (!before[rank] || victims == 3 || jury.world.below(3) != 0) continue;
        ++victims;
        if (jury.world.below(2) == 0) {
          fates[rank].kill_ns = static_cast<std::int64_t>(jury.world.below(330'000'000));
        } else {
          jury.world.quota[rank] = static_cast<std::int64_t>(jury.world.below(6 * ranks));
        }
      }
      const auto values = some_values(jury.world);
      const Ended ended = jury.run(fates, values);
      for (auto& quota : jury.world.quota) quota = kNever;
      const ConsensusDecision* first = nullptr;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const auto& outcome = ended.outcomes[rank];
        killed_inside += before[rank] && !jury.world.alive[rank] ? 1 : 0;
        if (!outcome) continue;
        ASSERT_TRUE(outcome->ok()) << "seed " << seed << " rank " << rank << ": " << to_string(outcome->error());
        const ConsensusDecision& decision = **outcome;
        if (first == nullptr) first = &decision;
        ASSERT_EQ(decision, *first) << "seed " << seed << " rank " << rank;
        for (std::uint32_t other = 0; other < ranks; ++other) {
          ASSERT_FALSE(decision.members[other] && !before[other])
              << "seed " << seed << ": rank " << other << " is dead";
          if (!decision.members[other]) {
            ASSERT_FALSE(jury.world.alive[other]) << "seed " << seed;
          } else {
            ASSERT_LE(decision.value, values[other]);
          }
        }
      }
      ASSERT_LT(ended.last_ns, 900'000'000) << "seed " << seed << ": a death cost somebody the patience";
    }
  }
  EXPECT_GT(killed_inside, 4000);
}

// Ranks are stopped for longer than the patience, at any time, and others die: what two ranks are told is the same, or
// speaks of different ranks; everybody is told something in time.
void stop_whoever(bool by_lines) {
  int agreed = 0;
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const std::uint32_t ranks = 2 + static_cast<std::uint32_t>(seed % 6);
    Jury jury(ranks, seed);
    jury.world.by_lines = by_lines;
    std::vector<Fate> fates(ranks);
    for (Fate& fate : fates) {
      fate.comes_ns = static_cast<std::int64_t>(jury.world.below(300'000'000));
      const auto lot = jury.world.below(4);
      if (lot == 0) fate.kill_ns = static_cast<std::int64_t>(jury.world.below(2'000'000'000));
      if (lot == 2) fate.stop_after = static_cast<std::int64_t>(jury.world.below(5 * ranks));
      fate.pause_ns = kPatienceNs * 9 / 10 + static_cast<std::int64_t>(jury.world.below(400'000'000));
      if (lot != 1) continue;
      fate.stop_ns = static_cast<std::int64_t>(jury.world.below(400'000'000));
      fate.wake_ns = fate.stop_ns + static_cast<std::int64_t>(jury.world.below(5'000'000'000));
    }
    const Ended ended = jury.run(fates, some_values(jury.world));
    ASSERT_LT(ended.last_ns, 11'000'000'000) << "seed " << seed;
    for (const auto& one : ended.outcomes) {
      if (!one) continue;
      one->ok() ? ++agreed : ++failed;
      for (const auto& other : ended.outcomes) {
        if (!one->ok() || !other || !other->ok() || **one == **other) continue;
        ASSERT_FALSE(overlap(**one, **other)) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(agreed, 6000);
  EXPECT_LT(failed, agreed) << "the test should be of agreements";
}

TEST(Consensus, WhoeverIsStopped) { stop_whoever(false); }
TEST(Consensus, WhoeverIsStoppedAcrossMachines) { stop_whoever(true); }

// It was left out; it is told so, and takes part in the next one.
TEST(Consensus, WhoComesTooLateIsToldAndComesBack) {
  Jury jury(4, 1);
  std::vector<Fate> fates(4);
  fates[0].comes_ns = 3'000'000'000;
  const Ended ended = jury.run(fates, {1, 2, 3, 4});
  ASSERT_FALSE(ended.outcomes[0]->ok());
  EXPECT_EQ(ended.outcomes[0]->error().code, ErrorCode::kRefused);
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    ASSERT_TRUE(ended.outcomes[rank]->ok());
    EXPECT_EQ((**ended.outcomes[rank]).members, (std::vector<bool>{false, true, true, true}));
    EXPECT_EQ((**ended.outcomes[rank]).value, 2);
  }
  const Ended again = jury.run(std::vector<Fate>(4), {1, 2, 3, 4});
  for (const auto& outcome : again.outcomes) {
    ASSERT_TRUE(outcome->ok());
    EXPECT_EQ((*outcome)->members, std::vector<bool>(4, true));
  }
}

TEST(Consensus, GarbageChangesNothing) {
  Jury jury(3, 7);
  for (int i = 0; i < 2000; ++i) {
    std::string garbage(jury.world.below(60), '\0');
    for (char& byte : garbage) byte = static_cast<char>(jury.world.below(256));
    if (i % 2 == 0) {
      garbage.resize(49);
      garbage.replace(0, 16, std::string("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16));
      garbage[0] = static_cast<char>(9 + jury.world.below(200));  // no kind
    }
    jury.world.queues[jury.world.below(3) * 3 + jury.world.below(3)].push_back(garbage);
  }
  const Ended ended = jury.run(std::vector<Fate>(3), {1, 2, 3});
  for (const auto& outcome : ended.outcomes) {
    ASSERT_TRUE(outcome->ok()) << to_string(outcome->error());
    EXPECT_EQ((*outcome)->members, std::vector<bool>(3, true));
  }
}

}  // namespace
}  // namespace tutti::detail
