// Tests the cost of building the plan of one rank among 100,000 ranks on 12,500 machines with 8 ranks each. The cost
// is the number of allocated bytes, which this program counts in its own operator new. The time is printed but not
// checked. Everything that find_generator() and build() allocate is counted, even if it is freed again. The caller's
// Collective (400 KB for the machine of each rank) is not counted, but the generator's copy of it is.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "plan/collective.h"
#include "support.h"

namespace {

std::size_t allocated_bytes = 0;  // by the only thread of this program

void* allocate(std::size_t bytes) {
  allocated_bytes += bytes;
  if (void* const memory = std::malloc(bytes)) return memory;
  std::abort();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
// These are needed as well, because std::stable_sort allocates with them and frees with the operators below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace tutti {
namespace {

constexpr std::uint32_t kRanks = 100'000;
constexpr std::uint32_t kPerMachine = 8;

struct Case {
  CollectiveKind kind;
  Algorithm algorithm;
};

struct Cost {
  std::size_t bytes = 0;
  std::size_t steps = 0;
};

// Returns the cost of the plan of one rank, and prints the time to standard output.
Cost cost_of(const Collective& collective, Algorithm algorithm, std::uint32_t rank) {
  const std::size_t before = allocated_bytes;
  const auto begin = std::chrono::steady_clock::now();
  const Result<Generator> generator = find_generator(collective, algorithm);
  if (!generator.ok()) {
    ADD_FAILURE() << generator.error().message;
    return {};
  }
  const RankPlan plan = generator->build(generator->shape, rank);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  Cost cost{.bytes = allocated_bytes - before};
  for (const Channel& channel : plan.channels) cost.steps += channel.steps.size();
  std::printf("%u ranks, %s by %s, rank %u: %zu steps, %.3f ms, %zu KB\n", collective.ranks,
              std::string(to_string(collective.kind)).c_str(), std::string(to_string(algorithm)).c_str(), rank,
              cost.steps, took.count(), cost.bytes / 1000);
  return cost;
}

Collective of_many(CollectiveKind kind, std::uint32_t ranks) {
  return {.kind = kind,
          .ranks = ranks,
          .root = has_root(kind) ? ranks / 3 : 0,
          .nodes = side_by_side(std::vector<std::uint32_t>(ranks / kPerMachine, kPerMachine))};
}

class PlanCost : public testing::TestWithParam<Case> {};

TEST_P(PlanCost, OfTreesAndHierarchiesIsUnderOneMegabyte) {
  const Collective collective = of_many(GetParam().kind, kRanks);
  for (const std::uint32_t rank : {0u, 7u, kRanks / 3, kRanks / 2 + 1, kRanks - 1}) {
    const Cost cost = cost_of(collective, GetParam().algorithm, rank);
    EXPECT_LT(cost.bytes, 1'000'000u) << rank;
    EXPECT_GT(cost.bytes, collective.nodes.size() * sizeof(std::uint32_t)) << "the copy of the machines is counted";
    EXPECT_GT(cost.steps, 0u);
    EXPECT_LT(cost.steps, 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PlanCost,
                         testing::Values(Case{CollectiveKind::kAllReduce, Algorithm::kDoubleTree},
                                         Case{CollectiveKind::kAllReduce, Algorithm::kRecursiveDoubling},
                                         Case{CollectiveKind::kAllReduce, Algorithm::kHierarchicalTree},
                                         Case{CollectiveKind::kBarrier, Algorithm::kDoubleTree},
                                         Case{CollectiveKind::kBroadcast, Algorithm::kDoubleTree},
                                         Case{CollectiveKind::kBroadcast, Algorithm::kBinomial},
                                         Case{CollectiveKind::kBroadcast, Algorithm::kTree},
                                         Case{CollectiveKind::kReduce, Algorithm::kDoubleTree},
                                         Case{CollectiveKind::kReduce, Algorithm::kBinomial},
                                         Case{CollectiveKind::kReduce, Algorithm::kTree}),
                         [](const auto& parameter) {
                           return std::string(to_string(parameter.param.kind)) + "_" +
                                  std::string(to_string(parameter.param.algorithm));
                         });

// A ring between machines has as many chunks as there are machines. Its plan and the tables of machines must grow
// linearly with the number of machines, and not faster.
TEST(PlanCostOfRings, GrowsWithTheRanksAndNoFaster) {
  const auto bytes = [](std::uint32_t ranks) {
    const std::uint32_t machines = ranks / 2;
    return static_cast<double>(
        cost_of(of_many(CollectiveKind::kAllReduce, ranks), Algorithm::kHierarchical, machines).bytes);
  };
  const double half = bytes(kRanks / 2);
  const double whole = bytes(kRanks);
  EXPECT_LT(whole, 2.2 * half);
  EXPECT_LT(whole, 1e8);
}

TEST(PlanCostOfRings, UnequalMachinesCostATable) {
  Collective unequal = of_many(CollectiveKind::kAllReduce, kRanks);
  unequal.nodes.back() = unequal.nodes.back() + 1;  // the last rank is alone on its machine
  const Cost cost = cost_of(unequal, Algorithm::kHierarchicalTree, kRanks / 2);
  EXPECT_GT(cost.bytes, 1'000'000u);
  EXPECT_LT(cost.bytes, 10'000'000u);
}

}  // namespace
}  // namespace tutti
