// Tests the simulation of plans in which a message carries a run of chunks (Messages::kRuns).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "algorithms/algorithms.h"
#include "model/simulate.h"
#include "networks.h"

namespace tutti {
namespace {

using testing::make_network;
using testing::plan_for;
using testing::round_parameters;
using testing::time_of;

// 8 ranks on one machine. Their channels move the bytes themselves. In the three rounds of the reduce-scatter, the
// messages have 4, 2 and 1 chunks, and in those of the all-gather 1, 2 and 4.
TEST(SimulatedRuns, TakeOnePostAndTheBytesOfAllTheirChunks) {
  const Network network = make_network("dgx-h100", 1);
  const Generator plan = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kCirculant, 0, Messages::kRuns);
  ASSERT_EQ(plan.shape.longest_run, 4u);
  Parameters parameters = round_parameters();
  parameters.reduce_gbytes_per_s = parameters.copy_gbytes_per_s = 0;
  const std::uint64_t bytes = 8 * 100'000;  // 100,000 bytes for each chunk: 1 us at 100 GB/s
  parameters.slot_bytes = bytes;
  const double chunks = 2 * (4 + 2 + 1), rounds = 6;
  const double expected = 7 + rounds * (0.25 + 0.5 + 1.25 + 0.25) + chunks;
  for (const SimulationModel model : {SimulationModel::kSweep, SimulationModel::kEvents, SimulationModel::kFlows}) {
    const SimulateOptions options{.model = model};
    EXPECT_NEAR(time_of(plan, bytes, network, parameters, options), expected, 1e-9) << static_cast<int>(model);
  }
}

// One rank on each machine, so a port (the NIC) moves the bytes.
TEST(SimulatedRuns, TakeThePortForTheBytesOfAllTheirChunks) {
  const Network network = make_network("cpu-1socket", 4, {.ranks = 1});
  ASSERT_EQ(network.ranks(), 4u);
  const Generator plan = plan_for(network, CollectiveKind::kAllGather, Algorithm::kCirculant, 0, Messages::kRuns);
  Parameters parameters = round_parameters();
  parameters.cost(Level::kSpine, Protocol::kSimple) = parameters.cost(Level::kNic, Protocol::kSimple);
  parameters.reduce_gbytes_per_s = parameters.copy_gbytes_per_s = 0;
  // Blocks of 10,000 bytes: 1 us at 10 GB/s. One message of 1 block, then one of 2.
  const double expected = 7 + 2 * (0.25 + 0.75 + 3 + 0.25) + 1 + 2;
  for (const SimulationModel model : {SimulationModel::kSweep, SimulationModel::kEvents, SimulationModel::kFlows}) {
    const SimulateOptions options{.model = model};
    EXPECT_NEAR(time_of(plan, 10'000, network, parameters, options), expected, 1e-9) << static_cast<int>(model);
  }
}

// `round` is the time of a message without bytes to the most distant rank, and of the two steps at its ends. Messages
// to nearer ranks take less time.
TEST(SimulatedRuns, OfLogarithmicPlansTakeAboutTheTimeOfTheirRounds) {
  struct Row {
    CollectiveKind kind;
    Algorithm algorithm;
    std::uint32_t rounds_per_doubling;
  };
  const Row rows[] = {{CollectiveKind::kAllReduce, Algorithm::kCirculant, 2},
                      {CollectiveKind::kAllReduce, Algorithm::kHalvingDoubling, 2},
                      {CollectiveKind::kAllGather, Algorithm::kCirculant, 1},
                      {CollectiveKind::kReduceScatter, Algorithm::kCirculant, 1},
                      {CollectiveKind::kGather, Algorithm::kBinomial, 1},
                      {CollectiveKind::kScatter, Algorithm::kBinomial, 1}};
  const Parameters parameters = default_gpu_parameters(90);
  for (const std::uint32_t machines : {16u, 128u, 512u}) {
    const Network network = make_network("dgx-h100", machines);
    std::uint32_t doublings = 0;
    while (1u << doublings < network.ranks()) ++doublings;
    const MessageCost& farthest = parameters.cost(Level::kSpine, Protocol::kSimple);
    const double round = 2 * parameters.step_us + farthest.post_us + farthest.latency_us;
    for (const Row& row : rows) {
      const Generator plan = plan_for(network, row.kind, row.algorithm, 0, Messages::kRuns);
      const std::uint64_t bytes = row.kind == CollectiveKind::kAllReduce ? 65536 : 65536 / network.ranks();
      const double rounds = row.rounds_per_doubling * doublings * round;
      const double time = time_of(plan, bytes, network, parameters) - parameters.launch_us;
      const std::string what =
          fmt::format("{} {}, {} ranks", to_string(row.kind), to_string(row.algorithm), network.ranks());
      EXPECT_LT(time, 1.5 * rounds) << what;
      EXPECT_GT(time, 0.5 * rounds) << what << ": not much less, because only about three rounds are inside a machine";
    }
  }
}

}  // namespace
}  // namespace tutti
