// Tests of find_shortage(): which machine or cgroup has too little memory for its ranks.
#include "tools/perf/memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti::tool {
namespace {

MemoryClaim claim(std::uint64_t machine, std::uint64_t machine_bytes, std::uint64_t needed, std::uint64_t group = 0,
                  std::uint64_t group_bytes = ~std::uint64_t{0}) {
  return {.machine = machine,
          .group = group,
          .machine_bytes = machine_bytes,
          .group_bytes = group_bytes,
          .needed_bytes = needed};
}

TEST(PerfMemory, RanksOfOneMachineShareItsMemory) {
  EXPECT_EQ(find_shortage({claim(1, 100, 50), claim(1, 100, 50), claim(2, 100, 100)}).needed_bytes, 0u);
  const MemoryShortage shortage = find_shortage({claim(2, 100, 100), claim(1, 100, 50), claim(1, 99, 50)});
  EXPECT_EQ(shortage.needed_bytes, 100u);
  EXPECT_EQ(shortage.available_bytes, 99u) << "the smallest value of all ranks";
  EXPECT_EQ(shortage.ranks, 2);
  EXPECT_EQ(shortage.first_rank, 1);
  EXPECT_FALSE(shortage.by_group);
}

// A limit applies to the sum of all ranks in the same cgroup. Ranks in different cgroups do not share a limit.
TEST(PerfMemory, TheLimitOfACgroupIsItsRanks) {
  const std::vector<MemoryClaim> apart = {claim(1, 1000, 50, 7, 60), claim(1, 1000, 50, 8, 60)};
  EXPECT_EQ(find_shortage(apart).needed_bytes, 0u);
  const std::vector<MemoryClaim> together = {claim(1, 1000, 50, 7, 60), claim(1, 1000, 50, 7, 60)};
  const MemoryShortage shortage = find_shortage(together);
  EXPECT_EQ(shortage.needed_bytes, 100u);
  EXPECT_EQ(shortage.available_bytes, 60u);
  EXPECT_TRUE(shortage.by_group);
}

TEST(PerfMemory, ThePlaceThatLacksMostIsNamed) {
  const MemoryShortage shortage = find_shortage({claim(1, 10, 20), claim(2, 10, 40), claim(3, 10, 30)});
  EXPECT_EQ(shortage.first_rank, 1);
  EXPECT_EQ(shortage.needed_bytes, 40u);
}

}  // namespace
}  // namespace tutti::tool
