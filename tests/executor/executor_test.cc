// Tests how a plan is bound to connections, and PlanExecution on one rank, step by step. The results of complete
// groups of ranks are tested in tests/communicator.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "algorithms/algorithms.h"
#include "executor/plan_execution.h"
#include "tests/support/failing_allocations.h"
#include "tests/transports/shm_ranks.h"
#include "transports/sim/sim_environment.h"

namespace tutti {
namespace {

Generator generator_of(Algorithm algorithm, std::uint32_t ranks) {
  return find_generator({.kind = CollectiveKind::kAllReduce, .ranks = ranks}, algorithm).value();
}

Result<std::unique_ptr<BoundPlan>> bound(const Generator& generator, std::uint32_t rank, Transport& transport,
                                         Connections& connections) {
  auto plan = bind(generator, rank, transport);
  if (plan.ok()) {
    EXPECT_TRUE(open(**plan, connections).ok());
  }
  return plan;
}

TEST(Bind, RefusesATransportWithFewerSlotsThanThePlanNeeds) {
  SimEnvironment sim({.ranks = 3, .slots = 1});
  const auto transport = sim.transport(0);
  Connections connections(*transport);
  const auto refused = bound(generator_of(Algorithm::kRing, 3), 0, *transport, connections);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().message,
            "the ring plan of all_reduce needs 2 slots per connection, transport sim has 1; set TUTTI_SLOTS=2 on all "
            "ranks");
}

TEST(Bind, PlansShareTheConnectionsOfAPairAndLane) {
  SimEnvironment sim({.ranks = 2});
  const auto transport = sim.transport(0);
  Connections connections(*transport);
  const auto ring = bound(generator_of(Algorithm::kRing, 2), 0, *transport, connections);
  const auto two_shot = bound(generator_of(Algorithm::kTwoShot, 2), 0, *transport, connections);
  ASSERT_TRUE(ring.ok() && two_shot.ok());
  for (const BoundPort& a : (*ring)->channels[0].ports) {
    EXPECT_NE(a.send == nullptr, a.receive == nullptr) << "a port must be either a send or a receive";
    for (const BoundPort& b : (*two_shot)->channels[0].ports) {
      if (a.send != nullptr && b.send != nullptr) {
        EXPECT_EQ(a.send, b.send);
      }
    }
  }
}

TEST(PlanExecution, OneRankAloneCopiesScalesAndDividesByOne) {
  SimEnvironment sim({.ranks = 1});
  const auto transport = sim.transport(0);
  Connections connections(*transport);
  const auto plan = bound(generator_of(Algorithm::kTwoShot, 1), 0, *transport, connections);
  ASSERT_TRUE(plan.ok());
  PlanExecution execution(**plan, *transport);
  const std::vector<float> input = {1, 2, 3};
  for (const auto& [op, factor] : {std::pair(ReduceOp::kAvg, 1.0f), std::pair(ReduceOp::kPreMulSum, 5.0f)}) {
    std::vector<float> output(3);
    Call call;
    call.tag = {.sequence = 1, .count = 3, .tile_bytes = 4096};
    call.lengths.count = 3;
    call.op = op;
    call.scale.real = 5.0;
    call.input = reinterpret_cast<const std::byte*>(input.data());
    call.output = reinterpret_cast<std::byte*>(output.data());
    execution.start(call);
    EXPECT_TRUE(execution.progress());
    EXPECT_TRUE(execution.done());
    EXPECT_EQ(output, (std::vector<float>{1 * factor, 2 * factor, 3 * factor}));
  }
}

TEST(PlanExecution, SaysWhatItWaitsFor) {
  SimEnvironment sim({.ranks = 2});
  const auto transport = sim.transport(0);
  Connections connections(*transport);
  const auto plan = bound(generator_of(Algorithm::kRing, 2), 0, *transport, connections);
  ASSERT_TRUE(plan.ok());
  PlanExecution execution(**plan, *transport);
  std::vector<float> data(10);
  Call call;
  call.tag = {.sequence = 1, .count = 10, .tile_bytes = 4096};
  call.lengths.count = 10;
  call.in_place = true;
  call.input = reinterpret_cast<const std::byte*>(data.data());
  call.output = reinterpret_cast<std::byte*>(data.data());
  execution.start(call);
  EXPECT_TRUE(execution.progress()) << "the first step only sends";
  EXPECT_FALSE(execution.progress());
  EXPECT_FALSE(execution.done());
  EXPECT_EQ(execution.waits_for(), "channel 0 step 1 of 3, tile 0 of 1, no message from rank 1");
}

// The channels of these algorithms wait for each other, both for the same tile and for the previous one. The
// machines have 3 and 2 ranks, and the call has many tiles.
TEST(PlanExecution, StagesOfACompositionHandTilesOnThroughMemory) {
  constexpr std::uint32_t kRanks = 5;
  constexpr std::size_t kCount = 10'007;
  for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kHierarchicalTree}) {
    const Generator generator = find_generator({.ranks = kRanks, .nodes = {0, 0, 0, 1, 1}}, algorithm).value();
    SimEnvironment sim({.ranks = kRanks});
    std::vector<std::vector<float>> data(kRanks, std::vector<float>(kCount));
    std::uint64_t tiles = 0;
    sim.run([&](std::uint32_t rank) {
      const auto transport = sim.transport(rank);
      Connections connections(*transport);
      const auto plan = bound(generator, rank, *transport, connections);
      ASSERT_TRUE(plan.ok());
      for (std::size_t i = 0; i < kCount; ++i) data[rank][i] = static_cast<float>((rank + 1) * (i % 1000));
      PlanExecution execution(**plan, *transport);
      Call call;
      call.tag = {.sequence = 1, .count = kCount, .tile_bytes = 256};
      call.lengths.count = kCount;
      call.in_place = true;
      call.input = reinterpret_cast<const std::byte*>(data[rank].data());
      call.output = reinterpret_cast<std::byte*>(data[rank].data());
      execution.start(call);
      tiles = Tiling(kCount, sizeof(float), generator.shape.chunks, 256).tiles();
      Idle idle;
      const auto waiter = sim.waiter(rank);
      while (!execution.done()) {
        if (!execution.progress()) waiter->pause(idle, transport->doorbell(), sim.clock()->now_ns() + 1'000'000);
      }
    });
    EXPECT_GT(tiles, 10u);
    for (const std::vector<float>& output : data) {
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(output[i], static_cast<float>(15 * (i % 1000))) << i;
    }
  }
}

// A rank publishes each block of its input to another peer, so it must have space for all of these peers before the
// first step.
TEST(PlanExecution, TheStepsOfAFirstCallAllocateNoMemory) {
  constexpr std::uint32_t kRanks = 5;
  constexpr std::size_t kCount = 2048;  // elements in each block, which is long enough to be published
  constexpr std::size_t kBytes = kRanks * kCount * sizeof(float);
  struct Rank {
    std::unique_ptr<Window> input;
    std::vector<float> output = std::vector<float>(kRanks * kCount);
    std::unique_ptr<Connections> connections;
    std::unique_ptr<BoundPlan> plan;
    std::unique_ptr<PlanExecution> execution;
  };
  const auto transports = shm_ranks({.ranks = kRanks}, in_process_exchanges(kRanks));
  const Generator generator =
      find_generator({.kind = CollectiveKind::kAllToAll, .ranks = kRanks}, Algorithm::kDirect).value();
  std::vector<Rank> ranks(kRanks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    Rank& own = ranks[rank];
    Transport& transport = *transports[rank];
    own.input = transport.allocate_window(kBytes).value();
    std::fill_n(reinterpret_cast<float*>(own.input->data()), kRanks * kCount, static_cast<float>(rank + 1));
    own.connections = std::make_unique<Connections>(transport);
    own.plan = bound(generator, rank, transport, *own.connections).value();
    own.execution = std::make_unique<PlanExecution>(*own.plan, transport);
    Call call;
    call.tag = {.sequence = 1, .count = kCount, .tile_bytes = kCount * sizeof(float)};
    call.lengths.count = kCount;
    call.input = own.input->data();
    call.output = reinterpret_cast<std::byte*>(own.output.data());
    call.input_window = transport.find_window(call.input, kBytes);
    own.execution->start(call);
  }
  const std::int64_t before = test::failing_allocations::counted();
  const auto pending = [](const Rank& rank) { return !rank.execution->done(); };
  for (int turn = 0; turn < 1000 && std::any_of(ranks.begin(), ranks.end(), pending); ++turn) {
    for (Rank& rank : ranks) {
      test::failing_allocations::fail_after(1'000'000, false);  // counts the allocations of this thread
      rank.execution->progress();
      test::failing_allocations::fail_after(0, false);
    }
  }
  EXPECT_EQ(test::failing_allocations::counted(), before);
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.execution->done());
    for (std::uint32_t peer = 0; peer < kRanks; ++peer)
      EXPECT_EQ(rank.output[peer * kCount], static_cast<float>(peer + 1));
  }
}

}  // namespace
}  // namespace tutti
