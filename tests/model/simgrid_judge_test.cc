// Compares the simulator with SimGrid, on fat-trees with contention. The times must agree within 2%.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ostream>

#include "algorithms/algorithms.h"
#include "model/simulate.h"
#include "simgrid_model.h"

namespace tutti::judge {
namespace {

constexpr double kMostError = 0.02;
constexpr double kGbytesPerS = 50;

struct Case {
  Algorithm algorithm;
  std::uint32_t ranks;
  double oversubscription;
  std::uint64_t tiles = 1;
};

std::string name_of(const Case& tested) {
  return std::string(to_string(tested.algorithm)) + "_of_" + std::to_string(tested.ranks) + "_oversubscribed_" +
         std::to_string(static_cast<int>(tested.oversubscription));
}

void PrintTo(const Case& tested, std::ostream* out) { *out << name_of(tested); }

// Each machine has one rank and one NIC of 50 GB/s. 16 machines share a leaf switch, and there are 8 spine switches.
Cluster fat_tree(std::uint32_t machines, double oversubscription) {
  Cluster cluster{.name = "judge", .machines = machines};
  cluster.machine.nodes.push_back({.kind = NodeKind::kCpu, .name = "cpu0", .numa = 0});
  cluster.machine.nodes.push_back(
      {.kind = NodeKind::kNic, .name = "nic0", .nic = {.device = 0, .megabits_per_s = kGbytesPerS * 8000}});
  cluster.machine.links.push_back({.from = 0, .to = 1, .gbytes_per_s = 4 * kGbytesPerS});
  cluster.fabric = {
      .kind = FabricKind::kFatTree, .machines_per_leaf = 16, .oversubscription = oversubscription, .spines = 8};
  return cluster;
}

// Only bytes (at 50 GB/s) and messages (1 us each) have a cost.
Parameters only_wires() {
  Parameters parameters{.name = "judge"};
  for (const Level level : {Level::kNic, Level::kSpine}) {
    parameters.cost(level, Protocol::kSimple) = {.latency_us = 1, .gbytes_per_s = kGbytesPerS};
  }
  parameters.slot_bytes = 1 << 20;
  parameters.slots = 4;
  return parameters;
}

class SimGridJudge : public testing::TestWithParam<Case> {};

TEST_P(SimGridJudge, FindsTheSameTime) {
  const Case& given = GetParam();
  const auto network = Network::create(fat_tree(given.ranks, given.oversubscription));
  ASSERT_TRUE(network.ok()) << network.error().message;
  const auto generator = find_generator({.ranks = given.ranks}, given.algorithm);
  ASSERT_TRUE(generator.ok());
  const Parameters parameters = only_wires();
  const std::uint64_t message_bytes = parameters.slot_bytes;
  const std::uint64_t bytes = message_bytes * generator->shape.chunks * given.tiles;
  const auto theirs = simgrid_us(build_plan(*generator),
                                 {.message_bytes = static_cast<double>(message_bytes),
                                  .tiles = given.tiles,
                                  .gbytes_per_s = kGbytesPerS,
                                  .slots = parameters.slots},
                                 *network);
  ASSERT_TRUE(theirs.ok()) << theirs.error().message;
  // In the SimGrid model, a port sends its messages one after the other, even if their routes differ.
  const auto ours =
      simulate(*generator, bytes, *network, parameters, {.model = SimulationModel::kFlows, .ports_in_order = true});
  ASSERT_TRUE(ours.ok()) << ours.error().message;
  EXPECT_EQ(ours->tiles, given.tiles);
  const double error = ours->time_us / *theirs - 1;
  std::printf("%s, %u ranks, 1:%g oversubscribed, %llu tiles: SimGrid %.2f us, ours %.2f us, %+.2f%%\n",
              std::string(to_string(given.algorithm)).c_str(), given.ranks, given.oversubscription,
              static_cast<unsigned long long>(given.tiles), *theirs, ours->time_us, 100 * error);
  EXPECT_LT(std::abs(error), kMostError);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::uint32_t ranks : {2u, 16u, 64u, 128u}) {
    for (const double oversubscription : {1.0, 4.0}) {
      for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling}) {
        all.push_back({algorithm, ranks, oversubscription});
      }
      all.push_back({Algorithm::kDoubleTree, ranks, oversubscription, 8});
    }
  }
  all.push_back({Algorithm::kHalvingDoubling, 512, 4});
  all.push_back({Algorithm::kDoubleTree, 512, 4, 8});
  all.push_back({Algorithm::kRing, 512, 1});
  return all;
}

INSTANTIATE_TEST_SUITE_P(FatTrees, SimGridJudge, testing::ValuesIn(cases()),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace tutti::judge
