// Tests CopyEngines::block_copies(): the copies must give the same outputs as the plans of the direct algorithm, which
// PlanExecution runs over the simulated transport.
#include "device/native/copy_engines.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "executor/plan_execution.h"
#include "plan/collective.h"
#include "transports/sim/sim_environment.h"

namespace tutti {
namespace {

using detail::CopyEngines;

constexpr std::size_t kCount = 37;

struct Buffers {
  std::vector<std::uint8_t> input;
  std::vector<std::uint8_t> output;
};

bool is_long(CollectiveKind kind, CollectiveKind one, CollectiveKind other) { return kind == one || kind == other; }

std::vector<Buffers> buffers_of(const Collective& collective) {
  const std::size_t ranks = collective.ranks;
  std::vector<Buffers> all(ranks);
  const CollectiveKind kind = collective.kind;
  const bool long_input = is_long(kind, CollectiveKind::kAllToAll, CollectiveKind::kScatter);
  const bool long_output =
      kind == CollectiveKind::kAllGather || is_long(kind, CollectiveKind::kAllToAll, CollectiveKind::kGather);
  for (std::size_t r = 0; r < ranks; ++r) {
    all[r].input.resize(long_input ? ranks * kCount : kCount);
    for (std::size_t i = 0; i < all[r].input.size(); ++i) all[r].input[i] = static_cast<std::uint8_t>(7 * r + i + 1);
    all[r].output.resize(long_output ? ranks * kCount : kCount, 0xa5);
  }
  return all;
}

void run_plan(const Generator& generator, std::vector<Buffers>& buffers) {
  SimEnvironment sim({.ranks = generator.shape.collective.ranks});
  sim.run([&](std::uint32_t rank) {
    const auto transport = sim.transport(rank);
    Connections connections(*transport);
    auto plan = bind(generator, rank, *transport);
    ASSERT_TRUE(plan.ok());
    ASSERT_TRUE(open(**plan, connections).ok());
    PlanExecution execution(**plan, *transport);
    Call call;
    call.tag = {.sequence = 1, .count = kCount, .tile_bytes = 4096};
    call.lengths.count = kCount;
    call.type = DataType::kUint8;
    call.element_bytes = 1;
    call.input = reinterpret_cast<const std::byte*>(buffers[rank].input.data());
    call.output = reinterpret_cast<std::byte*>(buffers[rank].output.data());
    execution.start(call);
    Idle idle;
    const auto waiter = sim.waiter(rank);
    while (!execution.done()) {
      if (!execution.progress()) waiter->pause(idle, transport->doorbell(), sim.clock()->now_ns() + 1'000'000);
    }
  });
}

void run_copies(const Collective& collective, std::vector<Buffers>& buffers) {
  for (std::uint32_t rank = 0; rank < collective.ranks; ++rank) {
    std::set<std::uint32_t> peers;
    for (const CopyEngines::BlockCopy& copy : CopyEngines::block_copies(collective, rank, kCount)) {
      ASSERT_LE(copy.from + copy.bytes, buffers[copy.peer].input.size());
      ASSERT_LE(copy.to + copy.bytes, buffers[rank].output.size());
      EXPECT_TRUE(peers.insert(copy.peer).second) << "one copy for each peer";
      std::memcpy(buffers[rank].output.data() + copy.to, buffers[copy.peer].input.data() + copy.from, copy.bytes);
    }
  }
}

TEST(CopyEngines, LeaveWhatThePlansLeave) {
  int compared = 0;
  for (const CollectiveKind kind : all_collectives()) {
    if (!CopyEngines::only_moves_blocks(kind)) continue;
    for (const std::uint32_t ranks : {1u, 2u, 3u, 5u}) {
      for (std::uint32_t root = 0; root < (has_root(kind) ? ranks : 1); ++root) {
        const Collective collective{.kind = kind, .ranks = ranks, .root = root};
        SCOPED_TRACE(std::string(to_string(kind)) + " of " + std::to_string(ranks) + ", root " + std::to_string(root));
        std::vector<Buffers> by_plan = buffers_of(collective);
        std::vector<Buffers> by_copies = buffers_of(collective);
        run_plan(find_generator(collective, algorithms_of(kind).front()).value(), by_plan);
        run_copies(collective, by_copies);
        for (std::uint32_t r = 0; r < ranks; ++r) {
          if (row_of(kind).root == RootHas::kTheOutput && r != root) continue;  // this rank has no output
          EXPECT_EQ(by_copies[r].output, by_plan[r].output) << "rank " << r;
        }
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 2 * 4 + 3 * (1 + 2 + 3 + 5));  // without a root, and with one
}

TEST(CopyEngines, BeginWithTheNextRank) {
  const auto copies = CopyEngines::block_copies({.kind = CollectiveKind::kAllToAll, .ranks = 3}, 1, 10);
  EXPECT_EQ(copies, (std::vector<CopyEngines::BlockCopy>{{2, 10, 20, 10}, {0, 10, 0, 10}, {1, 10, 10, 10}}));
  EXPECT_TRUE(CopyEngines::block_copies({.kind = CollectiveKind::kGather, .ranks = 3, .root = 2}, 1, 10).empty());
  EXPECT_TRUE(CopyEngines::block_copies({.kind = CollectiveKind::kAllGather, .ranks = 3}, 1, 0).empty())
      << "an empty call needs no copies";
}

}  // namespace
}  // namespace tutti
