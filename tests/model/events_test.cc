// Tests the event engine against times that are computed by hand, and against the sweep engine if no resource is
// shared.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "model/flows.h"
#include "networks.h"

namespace tutti {
namespace {

using testing::make_network;
using testing::plan_for;
using testing::round_parameters;
using testing::time_of;

constexpr SimulationModel kModels[] = {SimulationModel::kSweep, SimulationModel::kEvents, SimulationModel::kFlows};

SimulateOptions by(SimulationModel model) {
  SimulateOptions options;
  options.model = model;
  return options;
}

TEST(Events, AgreeWithTheSweepWhereNothingIsShared) {
  for (const std::uint32_t machines : {1u, 3u, 4u}) {
    const Network network = make_network("dgx-h100", machines);
    for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
      // The channels of one rank share its port between machines, which the sweep does not model.
      if (machines > 1 && algorithm == Algorithm::kDoubleTree) continue;
      if (machines > 1 && algorithm == Algorithm::kHierarchicalTree) continue;
      const Generator plan = plan_for(network, CollectiveKind::kAllReduce, algorithm);
      for (const std::uint64_t bytes : {8u, 3'000'000u, 90'000'000u}) {
        const double swept = time_of(plan, bytes, network, round_parameters(), by(SimulationModel::kSweep));
        EXPECT_NEAR(time_of(plan, bytes, network, round_parameters(), by(SimulationModel::kEvents)), swept,
                    1e-7 * swept)
            << to_string(algorithm) << " " << machines << " " << bytes;
      }
    }
  }
}

TEST(Events, FlowsAgreeTooWhereNoLinkIsNarrow) {
  const Network network = make_network("dgx-h100", 3);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kRecursiveDoubling}) {
    const Generator plan = plan_for(network, CollectiveKind::kAllReduce, algorithm);
    for (const std::uint64_t bytes : {8u, 3'000'000u, 90'000'000u}) {
      Parameters parameters = round_parameters();
      parameters.reduce_gbytes_per_s = 70;
      const double events = time_of(plan, bytes, network, parameters, by(SimulationModel::kEvents));
      EXPECT_NEAR(time_of(plan, bytes, network, parameters, by(SimulationModel::kFlows)), events, 1e-7 * events)
          << to_string(algorithm) << " " << bytes;
    }
  }
}

TEST(Events, ALevelWithoutTheProtocolTakesTheSimpleOneInAllModels) {
  const Network network = make_network("dgx-h100", 3);
  Parameters parameters = round_parameters();
  parameters.cost(Level::kNvLink, Protocol::kLl) = {.post_us = 0.1, .latency_us = 0.5, .gbytes_per_s = 50};
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  SimulateOptions options = by(SimulationModel::kSweep);
  options.protocol = Protocol::kLl;
  const double swept = time_of(ring, 24'000, network, parameters, options);
  EXPECT_LT(swept, time_of(ring, 24'000, network, round_parameters(), by(SimulationModel::kSweep)));
  for (const SimulationModel model : {SimulationModel::kEvents, SimulationModel::kFlows}) {
    options.model = model;
    EXPECT_NEAR(time_of(ring, 24'000, network, parameters, options), swept, 1e-7 * swept);
  }
}

TEST(Events, OnePortServesAllRanksOfAMachine) {
  const Network network = make_network("cpu-1socket", 2, {.ranks = 2});
  const Generator plan = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kOneShot);
  // two messages of 10 us each to the other machine, and one inside the machine
  const double end = 0.25 + 0.5 + 2 * 0.75 + 1;
  const double swept = 7 + end + 10.125 + 10 + 3 + 0.25;
  EXPECT_NEAR(time_of(plan, 100'000, network, round_parameters(), by(SimulationModel::kSweep)), swept, 1e-9);
  EXPECT_NEAR(time_of(plan, 100'000, network, round_parameters(), by(SimulationModel::kEvents)), swept + 2 * 10.125,
              1e-9);
  EXPECT_NEAR(time_of(plan, 100'000, network, round_parameters(), by(SimulationModel::kFlows)), swept + 2 * 10.125,
              1e-9);
}

TEST(Events, ASlowRankHoldsUpTheRing) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  for (const SimulationModel model : kModels) {
    SimulateOptions options = by(model);
    options.stragglers = {{.rank = 2, .factor = 10}};
    // Its messages are always waiting: 14 steps of 10 x 1.75 us, and the last one of 10 x 0.25 us.
    EXPECT_NEAR(time_of(ring, 800'000, network, round_parameters(), options), 7 + 14 * 17.5 + 2.5, 1e-9);
  }
}

// ---- shared links ----

// Four machines with one rank each, two for each leaf switch. In halving-doubling, ranks exchange two chunks inside
// the leaf in some rounds, and one chunk across in others. Only bytes have a cost.
struct FatTree {
  explicit FatTree(double oversubscription, std::uint32_t spines) {
    Result<Cluster> made = make_shape({.name = "cpu-1socket", .machines = 4, .ranks = 1, .fabric = "fat-tree"});
    EXPECT_TRUE(made.ok());
    cluster = *made;
    cluster.fabric.machines_per_leaf = 2;
    cluster.fabric.oversubscription = oversubscription;
    cluster.fabric.spines = spines;
    for (const Level level : {Level::kNic, Level::kSpine}) {
      parameters.cost(level, Protocol::kSimple) = {.gbytes_per_s = 10};
    }
  }
  double time(SimulationModel model, std::vector<std::string> dead_links = {}) const {
    const Result<Network> network = Network::create(cluster);
    EXPECT_TRUE(network.ok());
    SimulateOptions options = by(model);
    options.dead_links = std::move(dead_links);
    const Generator plan = plan_for(*network, CollectiveKind::kAllReduce, Algorithm::kHalvingDoubling);
    return time_of(plan, 4 * kChunk, *network, parameters, options);
  }
  static constexpr std::uint64_t kChunk = 320'000;  // 32 us at 10 GB/s
  Cluster cluster;
  Parameters parameters;
};

TEST(Flows, AWideFabricIsNoHindrance) {
  const FatTree tree(1, 1);  // the uplink of each leaf has 25 GB/s for two flows of 10 GB/s
  for (const SimulationModel model : kModels) EXPECT_NEAR(tree.time(model), (2 + 1 + 1 + 2) * 32, 1e-9);
}

TEST(Flows, TwoFlowsShareTheUplinkOfAnOversubscribedLeaf) {
  const FatTree tree(2, 1);  // the uplink has 12.5 GB/s: 6.25 GB/s for each of two flows, so 51.2 us for a chunk
  EXPECT_NEAR(tree.time(SimulationModel::kFlows), 2 * 32 + 2 * 51.2 + 2 * 32, 1e-6);
  EXPECT_NEAR(tree.time(SimulationModel::kEvents), 6 * 32, 1e-9);  // this model has no links
  EXPECT_NEAR(tree.time(SimulationModel::kAuto), 2 * 32 + 2 * 51.2 + 2 * 32, 1e-6);
}

TEST(Flows, WhatWentOverADeadLinkSharesAnotherOne) {
  const FatTree tree(1, 2);  // two uplinks of 12.5 GB/s, one for each machine of the leaf
  EXPECT_NEAR(tree.time(SimulationModel::kFlows), 6 * 32, 1e-6);
  for (const char* const name : {"leaf 0 -> spine 1", "spine 1 -> leaf 0"}) {
    EXPECT_NEAR(tree.time(SimulationModel::kFlows, {name}), 2 * 32 + 2 * 51.2 + 2 * 32, 1e-6);
  }
  const Network network = *Network::create(tree.cluster);
  EXPECT_EQ(network.without(std::vector<std::string>{"leaf 0 -> spine 0", "leaf 0 -> spine 1"}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(network.without(std::vector<std::string>{"leaf 7 -> spine 0"}).error().code, ErrorCode::kInvalidArgument);
}

TEST(Simulate, TreesOfAMillionRanksAreRefusedBeforeTheyAreBuilt) {
  const Network network = make_network("dgx-h100", 1 << 17);
  const Generator tree = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kDoubleTree);
  Generator watched = tree;
  int built = 0;
  watched.build = [&](const PlanShape& shape, std::uint32_t rank) {
    ++built;
    return tree.build(shape, rank);
  };
  const auto refused = simulate(watched, 1 << 20, network, round_parameters(), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("double_tree has a program of its own for each of 1048576 ranks"),
            std::string::npos);
  EXPECT_EQ(built, 0);
}

TEST(Network, ADeadLinksNameIsSuggestedOrListed) {
  const Network network = make_network("dgx-h100", 2);
  const auto answer = [&](const std::string& name) {
    const Result<Network> without = network.without(std::vector<std::string>{name});
    return without.ok() ? "taken" : without.error().message;
  };
  EXPECT_NE(answer("machine 0: gpu0 -> nvswtch").find("did you mean \"machine 0: gpu0 -> nvswitch\"?"),
            std::string::npos);
  EXPECT_NE(answer("machine 2: gpu0 -> nvswitch").find("machines 0 to 1"), std::string::npos);
  EXPECT_NE(answer("x").find("machine 0: cpu0 -> cpu1"), std::string::npos) << answer("x");
  EXPECT_EQ(answer("machine 1: nvswitch -> gpu3"), "taken");
  // Without its PCI link, a GPU has only NVLink. This is enough inside its machine, but not between machines.
  const std::string pci = "machine 0: pci 0000:01:00.0 -> gpu0";
  EXPECT_NE(answer(pci).find("rank 0 of machine 0 (gpu0) is cut off"), std::string::npos);
  const Network alone = make_network("dgx-h100", 1);
  const Generator ring = plan_for(alone, CollectiveKind::kAllReduce, Algorithm::kRing);
  SimulateOptions options = by(SimulationModel::kFlows);
  options.dead_links = {pci};
  EXPECT_EQ(time_of(ring, 800'000, alone, round_parameters(), options),
            time_of(ring, 800'000, alone, round_parameters(), by(SimulationModel::kFlows)));
}

TEST(Flows, SendersIntoOneNicTakeTheirBytesOverItsBandwidth) {
  const Network network = make_network("cpu-1socket", 4, {.ranks = 1});
  Parameters parameters;
  for (const Level level : {Level::kNic, Level::kSpine}) {
    parameters.cost(level, Protocol::kSimple) = {.gbytes_per_s = 10};
  }
  parameters.slot_bytes = 1 << 20;
  const Generator gather = plan_for(network, CollectiveKind::kGather, Algorithm::kDirect);
  // Three senders with 10 GB/s each share a NIC of 12.5 GB/s.
  EXPECT_NEAR(time_of(gather, 1'000'000, network, parameters, by(SimulationModel::kFlows)), 3 * 1e6 / 12.5e3, 1e-6);
  EXPECT_NEAR(time_of(gather, 1'000'000, network, parameters, by(SimulationModel::kEvents)), 1e6 / 10e3, 1e-6);
}

// Two machines with eight GPUs and a NIC for each GPU. In a one-shot all_reduce, the ranks of a machine all begin
// with the same rank of the other one. Eight senders of 10 GB/s then share one NIC, while seven others have nothing
// to do. Ports must continue with the messages that they have for these.
TEST(Flows, APortWhoseMessageIsSlowedDownCarriesOthersMeanwhile) {
  const Network network = make_network("dgx-a100", 2);
  Parameters parameters;
  parameters.cost(Level::kNvLink, Protocol::kSimple) = {.gbytes_per_s = 1e6};
  for (const Level level : {Level::kNic, Level::kSpine}) {
    parameters.cost(level, Protocol::kSimple) = {.gbytes_per_s = 10};
  }
  parameters.slot_bytes = 1 << 20;
  const Generator plan = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kOneShot);
  // Messages inside the machine come first: seven of 1 MB. Each NIC sends and receives eight messages.
  const double inside = 7e6 / (network.narrowest_gbytes_per_s(0, 1) * 1e3);
  EXPECT_NEAR(time_of(plan, 1'000'000, network, parameters, by(SimulationModel::kFlows)), inside + 8e6 / 10e3, 1e-3);
  SimulateOptions in_order = by(SimulationModel::kFlows);
  in_order.ports_in_order = true;  // eight times eight messages into one NIC
  const double narrowest = network.narrowest_gbytes_per_s(0, 8);
  ASSERT_LT(narrowest, 8 * 10);
  EXPECT_NEAR(time_of(plan, 1'000'000, network, parameters, in_order), inside + 64e6 / (narrowest * 1e3), 1e-3);
}

// The root of a direct broadcast sends all copies over its own NIC, even if its machine has more NICs.
TEST(Flows, ARootSendsAllChannelsByItsOwnPort) {
  const Network network = make_network("dgx-a100", 2);
  Parameters parameters;
  parameters.cost(Level::kNvLink, Protocol::kSimple) = {.gbytes_per_s = 1e6};
  for (const Level level : {Level::kNic, Level::kSpine}) {
    parameters.cost(level, Protocol::kSimple) = {.gbytes_per_s = 10};
  }
  parameters.slot_bytes = 1 << 20;
  parameters.channels = 8;
  const Generator plan = plan_for(network, CollectiveKind::kBroadcast, Algorithm::kDirect);
  const double inside = 7e6 / (network.narrowest_gbytes_per_s(0, 1) * 1e3);
  for (const SimulationModel model : kModels) {
    EXPECT_NEAR(time_of(plan, 1'000'000, network, parameters, by(model)), inside + 8e6 / 10e3, 1e-3);
  }
}

TEST(Flows, AreMaxMinFair) {
  // Flow 0 uses links 0 and 1, flow 1 uses link 0, flow 2 uses link 1, flow 3 uses link 5, and flow 4 needs only 2
  // GB/s of link 0.
  const std::vector<Flows::FlowRoute> kinds{{{0, 1}, 100, 0}, {{0}, 100, 1}, {{1}, 100, 2}, {{5}, 7, 3}, {{0}, 2, 4}};
  Flows flows(kinds, [](std::uint64_t link) { return link == 0 ? 10.0 : link == 1 ? 3.0 : 8.0; });
  std::vector<double> rates(5, -1);
  const auto settle = [&] { flows.settle([&](std::uint32_t flow, double rate) { rates[flow] = rate; }); };
  for (const std::uint32_t flow : {0u, 1u, 3u}) flows.begin(flow);
  settle();
  EXPECT_EQ(rates, (std::vector<double>{3, 7, -1, 7, -1}));
  flows.begin(2);
  flows.begin(4);
  settle();
  EXPECT_EQ(rates, (std::vector<double>{1.5, 6.5, 1.5, 7, 2}));
  flows.end(0);
  settle();
  EXPECT_EQ(rates, (std::vector<double>{1.5, 8, 3, 7, 2}));
  const std::uint64_t solved = flows.solved();
  flows.begin(0);
  settle();
  EXPECT_EQ(rates, (std::vector<double>{1.5, 6.5, 1.5, 7, 2}));
  EXPECT_EQ(flows.solved(), solved);  // the same set of flows was solved before
}

// ---- failures ----

TEST(Events, ADeadRankIsNamedWithWhoWaitsForIt) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  SimulateOptions options;
  options.dead_ranks = {5};
  const Result<SimulateResult> result = simulate(ring, 800'000, network, round_parameters(), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(result.error().rank, 5);
  EXPECT_NE(result.error().message.find("rank 6 waits for a message of rank 5, which is dead, in step 1 of"),
            std::string::npos)
      << result.error().message;
}

TEST(Events, ADeadLeafThatNobodyWaitsForIsNoHindrance) {
  const Network network = make_network("dgx-h100", 1);
  const Generator broadcast = plan_for(network, CollectiveKind::kBroadcast, Algorithm::kBinomial);
  SimulateOptions options;
  options.dead_ranks = {7};
  EXPECT_TRUE(simulate(broadcast, 1000, network, round_parameters(), options).ok());
  options.dead_ranks = {4};  // has children in the tree
  EXPECT_EQ(simulate(broadcast, 1000, network, round_parameters(), options).error().code, ErrorCode::kPeerLost);
}

TEST(Events, ADeadNvLinkSendsTrafficOverPcie) {
  const Network network = make_network("dgx-h100", 1);
  const Result<Network> without = network.without(std::vector<std::string>{"machine 0: gpu0 -> nvswitch"});
  ASSERT_TRUE(without.ok()) << to_string(without.error());
  EXPECT_EQ(network.level(0, 1), Level::kNvLink);
  EXPECT_EQ(without->level(0, 1), Level::kPcie);
  EXPECT_EQ(without->level(1, 2), Level::kNvLink);
}

TEST(Events, JitterComesFromTheSeed) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  for (const SimulationModel model : {SimulationModel::kEvents, SimulationModel::kFlows}) {
    SimulateOptions options = by(model);
    const double without = time_of(ring, 800'000, network, round_parameters(), options);
    options.jitter = 0.5;
    const double first = time_of(ring, 800'000, network, round_parameters(), options);
    EXPECT_DOUBLE_EQ(time_of(ring, 800'000, network, round_parameters(), options), first);
    EXPECT_GT(first, 1.2 * without);
    EXPECT_LT(first, 4 * without);
    options.seed = 2;
    EXPECT_NE(time_of(ring, 800'000, network, round_parameters(), options), first);
  }
}

TEST(Events, RanksThatOutnumberCoresTakeTurns) {
  const Network network = make_network("cpu-1socket", 1, {.ranks = 2});
  const Generator plan = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kOneShot);
  Parameters parameters = round_parameters();
  parameters.handover_us = 3;
  parameters.cores = 2;
  const double apart = time_of(plan, 100'000, network, parameters, by(SimulationModel::kEvents));
  EXPECT_NEAR(apart, 7 + 1.75 + 1.25 + 0.25, 1e-9);
  parameters.cores = 1;
  // Rank 0 sends (1.75). Rank 1 takes the core (3), sends (1.75) and continues with its sum (0.25). Rank 0 sees the
  // message 1.25 after the send, takes the core (3) and adds (0.25).
  EXPECT_NEAR(time_of(plan, 100'000, network, parameters, by(SimulationModel::kEvents)),
              7 + 1.75 + 3 + 1.75 + 1.25 + 3 + 0.25, 1e-9);
}

// A regression test: an event of another machine at the same time once kept a free core idle forever.
TEST(Events, CoresOfSeveralMachinesDoNotWaitForEachOther) {
  Parameters parameters;
  for (const Level level : {Level::kMemory, Level::kNic, Level::kSpine}) {
    parameters.cost(level, Protocol::kSimple) = {.post_us = 1, .latency_us = 1, .gbytes_per_s = 10};
  }
  parameters.step_us = 1;
  parameters.cores = 1;
  for (const std::uint32_t machines : {2u, 3u}) {
    const Network network = make_network("cpu-2socket", machines, {.ranks = 4});
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubleTree, Algorithm::kHierarchical}) {
      const Generator plan = plan_for(network, CollectiveKind::kAllReduce, algorithm);
      EXPECT_GT(time_of(plan, 65536, network, parameters, {.model = SimulationModel::kEvents}), 0);
    }
  }
}

TEST(Events, TimeLinesShowEveryStepOfTheFirstRanks) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  SimulateOptions options = by(SimulationModel::kEvents);
  options.traced_ranks = 3;
  const Result<SimulateResult> result = simulate(ring, 800'000, network, round_parameters(), options);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->trace.size(), 3u * 15);
  double last = 0;
  for (const TracedStep& step : result->trace) {
    EXPECT_LT(step.rank, 3u);
    EXPECT_LE(step.ready_us, step.begin_us);
    EXPECT_LT(step.begin_us, step.end_us);
    last = std::max(last, step.end_us);
  }
  EXPECT_NEAR(last + 7, result->time_us, 1e-9);
}

TEST(Simulate, LinksCarryWhatThePlanSends) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  const Result<SimulateResult> result = simulate(ring, 800'000, network, round_parameters(), {});
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->busiest.size(), kMostBusiest);
  EXPECT_EQ(result->busiest[0].name, "machine 0: gpu0 -> nvswitch");
  EXPECT_DOUBLE_EQ(result->busiest[0].bytes, 1'400'000);
  EXPECT_NEAR(result->busiest[0].utilisation, 1'400'000 / (18 * 20.6 * 1000 * result->time_us), 1e-9);
}

TEST(Simulate, RefusesFlowsWithoutLinksByTheReason) {
  Cluster cluster = *make_shape({.name = "cpu-1socket", .ranks = 2});
  std::erase_if(cluster.machine.nodes, [](const GraphNode& node) { return node.kind != NodeKind::kCpu; });
  cluster.machine.links.clear();
  const Network network = *Network::create(cluster);
  const Generator one_shot = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kOneShot);
  const auto flows = simulate(one_shot, 1000, network, round_parameters(), {.model = SimulationModel::kFlows});
  ASSERT_FALSE(flows.ok());
  EXPECT_NE(flows.error().message.find("this network has no links"), std::string::npos) << flows.error().message;
}

TEST(Simulate, RefusesWhatDoesNotFit) {
  const Network network = make_network("dgx-h100", 1);
  const Generator ring = plan_for(network, CollectiveKind::kAllReduce, Algorithm::kRing);
  const auto refusal = [&](const SimulateOptions& options) {
    return simulate(ring, 1000, network, round_parameters(), options).error().code;
  };
  EXPECT_EQ(refusal({.stragglers = {{.rank = 8, .factor = 2}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({.stragglers = {{.rank = 1, .factor = 0.5}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({.dead_links = {"nowhere"}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({.dead_ranks = {9}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({.model = SimulationModel::kSweep, .jitter = 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({.protocol = Protocol::kLl, .jitter = -1}), ErrorCode::kInvalidArgument);
  const Network other = make_network("dgx-h100", 2);
  EXPECT_EQ(simulate(ring, 1000, other, round_parameters(), {}).error().code, ErrorCode::kInvalidArgument);
  Parameters empty = round_parameters();
  empty.cost(Level::kNvLink, Protocol::kSimple).gbytes_per_s = 0;
  EXPECT_EQ(simulate(ring, 1000, network, empty, {}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tutti
