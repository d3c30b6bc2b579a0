// Tests rotation_period(): the programs of ranks that are a period apart must have the same timing.
#include "model/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/algorithms.h"

namespace tutti {
namespace {

// Returns the parts of a program that affect its duration, with peers as distances from the rank.
std::string timing_of(const RankPlan& plan, std::uint32_t rank, std::uint32_t ranks) {
  std::string text;
  for (const Channel& channel : plan.channels) {
    text += "channel\n";
    std::size_t after = 0;
    for (std::uint32_t s = 0; s < channel.steps.size(); ++s) {
      const Step& step = channel.steps[s];
      std::vector<std::string> ports;
      const auto add = [&](char kind, std::uint16_t index) {
        const Port& port = channel.ports[index];
        ports.push_back(kind + std::to_string((port.peer + ranks - rank) % ranks) + "." + std::to_string(port.lane));
      };
      for (const std::uint16_t index : channel.receives(step)) add('<', index);
      for (const std::uint16_t index : channel.sends(step)) add('>', index);
      std::sort(ports.begin(), ports.end());  // the order of operands does not affect the duration
      for (const std::string& each : ports) text += each + " ";
      text += step.source.space != Space::kNone ? "local " : "";
      text += step.sink.space != Space::kNone ? "store " : "";
      std::vector<std::tuple<int, int, int>> waits;
      for (; after < channel.after.size() && channel.after[after].step == s; ++after) {
        const After& each = channel.after[after];
        waits.emplace_back(each.other_channel, each.other_step, each.tiles_before);
      }
      std::sort(waits.begin(), waits.end());
      for (const auto& [c, o, t] : waits) {
        text += "after " + std::to_string(c) + "," + std::to_string(o) + "," + std::to_string(t) + " ";
      }
      text += "\n";
    }
  }
  return text;
}

bool turns_by(const Generator& generator, std::uint32_t period) {
  const std::uint32_t ranks = generator.shape.collective.ranks;
  for (std::uint32_t rank = period; rank < ranks; ++rank) {
    const std::uint32_t like = rank % period;
    if (timing_of(generator.build(generator.shape, rank), rank, ranks) !=
        timing_of(generator.build(generator.shape, like), like, ranks)) {
      return false;
    }
  }
  return true;
}

TEST(Rotation, ProgramsAreThoseOfTheFirstRanksMovedAlong) {
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (std::uint32_t ranks = 1; ranks <= 12; ++ranks) {
        // size of a machine; the last machine may have fewer ranks
        for (std::uint32_t size = 1; size <= ranks; ++size) {
          Collective collective{.kind = kind, .ranks = ranks};
          for (std::uint32_t rank = 0; rank < ranks && size < ranks; ++rank) collective.nodes.push_back(rank / size);
          const Result<Generator> generator = find_generator(collective, algorithm);
          if (!generator.ok()) continue;
          const std::uint32_t period = rotation_period(*generator);
          ASSERT_EQ(ranks % period, 0u);
          EXPECT_TRUE(turns_by(*generator, period)) << to_string(kind) << " " << to_string(algorithm) << " of " << ranks
                                                    << " ranks, " << size << " to a machine: not every " << period;
        }
      }
    }
  }
}

TEST(Rotation, IsKnownWhereItMatters) {
  const auto period = [](Algorithm algorithm, std::vector<std::uint32_t> nodes) {
    return rotation_period(
        *find_generator({.kind = CollectiveKind::kAllReduce, .ranks = 8, .nodes = std::move(nodes)}, algorithm));
  };
  EXPECT_EQ(period(Algorithm::kRing, {}), 1u);
  EXPECT_EQ(period(Algorithm::kTwoShot, {}), 1u);
  EXPECT_EQ(period(Algorithm::kHierarchical, {0, 0, 0, 0, 1, 1, 1, 1}), 4u);
  EXPECT_EQ(period(Algorithm::kHierarchical, {0, 0, 0, 1, 1, 1, 2, 2}), 8u);
  EXPECT_EQ(period(Algorithm::kHierarchical, {0, 0, 1, 1, 0, 0, 1, 1}), 8u);
  EXPECT_EQ(period(Algorithm::kDoubleTree, {}), 8u);
}

TEST(Rotation, AWrongPeriodWouldBeSeen) {
  EXPECT_FALSE(turns_by(*find_generator({.kind = CollectiveKind::kAllReduce, .ranks = 8}, Algorithm::kDoubleTree), 4));
}

}  // namespace
}  // namespace tutti
