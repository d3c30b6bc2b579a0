// Tests the sweep engine of the simulator against times that are computed by hand.
#include "model/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "model/costs.h"
#include "model/programs.h"
#include "networks.h"

namespace tutti {
namespace {

using testing::make_network;
using testing::plan_for;
using testing::round_parameters;
using testing::time_of;

const SimulateOptions kSweep{.model = SimulationModel::kSweep};

// Each step of a ring on one machine sends one chunk of b bytes. The p ranks work in lockstep. Each step takes post
// + step + b/B, and the latency follows.
TEST(Sweep, RingOnOneMachineTakesItsStepsInTurn) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  const std::uint64_t bytes = 8 * 100'000;          // 100,000 bytes for each chunk: 1 us at 100 GB/s
  const double step = 0.25 + 0.5 + 1, last = 0.25;  // the last step sends nothing
  EXPECT_NEAR(time_of(ring, bytes, network, round_parameters(), kSweep), 7 + 14 * step + last + 14 * 1.25, 1e-9);
}

TEST(Sweep, AddingTakesAsLongAsItTakesWhereThatIsMoreThanSending) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  Parameters parameters = round_parameters();
  parameters.reduce_gbytes_per_s = 25;  // 4 us for a chunk
  parameters.copy_gbytes_per_s = 50;    // 2 us for a chunk
  // Step 0 only sends (1 us), 7 steps add (4 us), and the 6 steps that store and pass on copy (2 us). The last step
  // also copies.
  const double expected = 7 + (0.75 + 1) + 7 * (0.75 + 4) + 6 * (0.75 + 2) + (0.25 + 2) + 14 * 1.25;
  EXPECT_NEAR(time_of(ring, 800'000, network, parameters, kSweep), expected, 1e-9);
}

// Two machines with 8 ranks each. In the end, every rank waits for the slowest link. A message over it arrives b/B +
// L after its departure, while its sender continues.
TEST(Sweep, OneShotSendsThroughThePortInTurn) {
  const Network network = make_network("dgx-h100", 2);
  const Generator one_shot = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kOneShot);
  const double posts = 7 * 0.5 + 8 * 0.75, moves = 7 * 1;
  const double end = 0.25 + posts + moves;
  // The port sends 8 messages of 10 us, with 0.125 us between two departures.
  const double sight = end + 7 * (10 + 0.125) + 10 + 4;  // the last one goes to another rail, over a spine switch
  EXPECT_NEAR(time_of(one_shot, 100'000, network, round_parameters(), kSweep), 7 + sight + 0.25, 1e-9);
}

// The ranks of one machine take the place of those of all machines only if no message is slower over an uplink.
TEST(Sweep, AnUplinkNarrowerThanOneNicDistinguishesTheMachines) {
  Result<Cluster> cluster = make_shape(
      {.name = "dgx-h100", .machines = 4, .fabric = "fat-tree", .oversubscription = 4, .machines_per_leaf = 2});
  ASSERT_TRUE(cluster.ok()) << to_string(cluster.error());
  const auto period = [&] { return Network::create(*cluster)->period_of_machines(); };
  EXPECT_EQ(period(), 32u) << "an uplink has 25 GB/s, each NIC 50";
  for (GraphNode& node : cluster->machine.nodes) {
    if (node.kind == NodeKind::kNic) node.nic.megabits_per_s = 160'000;
  }
  cluster->fabric.oversubscription = 1.6;
  EXPECT_EQ(period(), 8u) << "an uplink has 25 GB/s, each NIC 20";
  std::ranges::find(cluster->machine.nodes, NodeKind::kNic, &GraphNode::kind)->nic.megabits_per_s = 400'000;
  EXPECT_EQ(period(), 32u) << "one NIC has 50 GB/s, and an uplink less";
}

TEST(Sweep, ChannelsShareWhatOneRankHas) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  Parameters parameters = round_parameters();
  parameters.cost(Level::kNvLink, Protocol::kSimple).channel_gbytes_per_s = 20;
  const double fixed = 7 + 14 * 0.75 + 0.25 + 14 * 1.25;
  SimulateOptions options = kSweep;
  options.channels = 1;  // 20 GB/s: 5 us for 100,000 bytes
  EXPECT_NEAR(time_of(ring, 800'000, network, parameters, options), fixed + 14 * 5, 1e-6);
  options.channels = 4;  // 80 GB/s together
  EXPECT_NEAR(time_of(ring, 800'000, network, parameters, options), fixed + 14 * 1.25, 1e-6);
  options.channels = 16;  // 100 GB/s together, not 320 GB/s
  EXPECT_NEAR(time_of(ring, 800'000, network, parameters, options), fixed + 14 * 1, 1e-6);
}

// Each of the 8 copies of a ring crosses between the machines at another rank, so that each has a NIC of its own.
// All copies of a hierarchy use all NICs.
TEST(Sweep, CopiesOfARingUseTheRailsOfAllRanks) {
  const Network network = make_network("dgx-h100", 2);
  Parameters parameters = round_parameters();
  parameters.cost(Level::kNvLink, Protocol::kSimple).gbytes_per_s = 1e9;
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  SimulateOptions options = kSweep;
  options.channels = 1;
  const std::uint64_t bytes = 64'000'000;
  const double one = time_of(ring, bytes, network, parameters, options);
  options.channels = 8;
  const double eight = time_of(ring, bytes, network, parameters, options);
  options.channels = 16;
  const double sixteen = time_of(ring, bytes, network, parameters, options);
  EXPECT_GT(one, 6.5 * eight);
  EXPECT_NEAR(sixteen, eight, 0.2 * eight);
}

// ---- the shortcuts must give the same times as the full computation ----

double run(const Generator& generator, const Network& network, std::uint32_t places, const TileCounts& tiles,
           bool extrapolate, bool ring, const std::map<std::uint32_t, double>& factors = {}) {
  const Parameters parameters = round_parameters();
  const Result<Programs> programs = make_programs(generator);
  EXPECT_TRUE(programs.ok());
  Result<Costs> costs = Costs::create(*programs, network, parameters, {.factors = factors}, places);
  EXPECT_TRUE(costs.ok());
  std::unique_ptr<TileRunner> runner = ring ? make_ring_sweep(*programs, *costs, 4) : *make_sweep(*programs, *costs, 4);
  EXPECT_NE(runner, nullptr);
  if (runner == nullptr) return -1;
  const Result<double> time = run_tiles(*runner, *costs, tiles, extrapolate, {});
  EXPECT_TRUE(time.ok()) << to_string(time.error());
  return time.ok() ? *time : -1;
}

TEST(Sweep, TilesOfARegularRegimeMayBeLeftOut) {
  for (const std::uint32_t machines : {1u, 3u}) {
    const Network network = make_network("dgx-h100", machines);
    for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
      const Generator plan = plan_for(network, CollectiveKind::kAllReduce, algorithm);
      const std::uint32_t places = make_programs(plan)->places();
      const TileCounts tiles{.full = 200, .full_bytes = 30'000, .last = 1, .last_bytes = 1'000};
      const double full = run(plan, network, places, tiles, false, false);
      EXPECT_NEAR(run(plan, network, places, tiles, true, false), full, 1e-7 * full) << to_string(algorithm);
    }
  }
}

// All 100,000 ranks differ, because the last leaf switch is not full. This must be detected from the program of one
// rank.
TEST(Sweep, WhatIsTooLargeIsRefusedAfterOneProgram) {
  const Network network = make_network("dgx-h100", 12'500);
  Generator plan = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kHierarchical);
  int built = 0;
  plan.build = [&built, build = plan.build](const PlanShape& shape, std::uint32_t rank) {
    ++built;
    return build(shape, rank);
  };
  const Result<SimulateResult> result = simulate(plan, 1 << 30, network, round_parameters(), kSweep);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(result.error().message.find("of 100000 ranks that are not alike"), std::string::npos);
  EXPECT_EQ(built, 1);
}

TEST(Sweep, OnePeriodStandsForAllRanks) {
  const Network network = make_network("dgx-h100", 4);
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kTwoShot, Algorithm::kCirculant, Algorithm::kHierarchical}) {
    const Generator plan = plan_for(network, CollectiveKind::kAllReduce, algorithm);
    const Result<Programs> programs = make_programs(plan);
    const TileCounts tiles{.full = 3, .full_bytes = 30'000};
    const std::uint32_t period = std::max(network.period() / programs->classes, 1u);
    ASSERT_LT(period, programs->places());
    EXPECT_DOUBLE_EQ(run(plan, network, period, tiles, false, false),
                     run(plan, network, programs->places(), tiles, false, false))
        << to_string(algorithm);
  }
}

TEST(Sweep, BlocksOfARingGiveTheSameTimes) {
  for (const std::uint32_t machines : {64u, 100u, 161u}) {
    const Network network = make_network("dgx-h100", machines);
    const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
    const TileCounts tiles{.full = 2, .full_bytes = 10'000};
    const std::map<std::uint32_t, double> factors{{0, 3.5}, {77, 2}, {network.ranks() - 1, 5}};
    EXPECT_DOUBLE_EQ(run(ring, network, network.ranks(), tiles, false, true, factors),
                     run(ring, network, network.ranks(), tiles, false, false, factors));
  }
}

TEST(Sweep, EveryAlgorithmOfEveryCollectiveEnds) {
  const Network network = make_network("dgx-a100", 2);
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      const Generator plan = plan_for(network, kind, algorithm, 0);
      const double small = time_of(plan, 8, network, round_parameters(), kSweep);
      const double large = time_of(plan, 8 << 20, network, round_parameters(), kSweep);
      EXPECT_GT(small, 7) << to_string(kind) << " " << to_string(algorithm);
      EXPECT_GT(large, small) << to_string(kind) << " " << to_string(algorithm);
    }
  }
}

}  // namespace
}  // namespace tutti
