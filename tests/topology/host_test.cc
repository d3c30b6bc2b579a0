#include "topology/host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace tutti {
namespace {

TEST(Host, HasNoMoreCoresThanTheMachine) {
  const HostTopology host = discover_host();
  const std::uint32_t cores = cores_of({host.cpus}, host.cpu_limit);
  EXPECT_GE(cores, 1u);
  EXPECT_LE(cores, std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_GE(host.last_level_bytes, host.l2_bytes);
}

TEST(Host, RanksThatAreBoundToACoreEachHaveThemTogether) {
  const std::vector<bool> first{true}, second{false, true}, both{true, true}, far(600, true);
  EXPECT_EQ(cores_of({first, second}, 0), 2u);
  EXPECT_EQ(cores_of({first, first, first}, 0), 1u);
  EXPECT_EQ(cores_of({both, second}, 0), 2u);
  EXPECT_EQ(cores_of({first, far}, 0), 600u);
  EXPECT_EQ(cores_of({first, far}, 7), 7u) << "no more than the cgroup allows";
  EXPECT_EQ(cores_of({}, 0), 1u);
}

TEST(Host, PacksItsCpus) {
  EXPECT_EQ(pack_cpus({true}), "1");
  EXPECT_EQ(pack_cpus({false, true, false, false, true, true}), "23");
  EXPECT_EQ(pack_cpus(std::vector<bool>(1024, false)), "");
  std::vector<bool> odd(1024, false);
  for (std::size_t cpu = 1; cpu < odd.size(); cpu += 2) odd[cpu] = true;
  EXPECT_LE(pack_cpus(odd).size(), 256u);
  EXPECT_EQ(unpack_cpus(pack_cpus(odd)), odd);
  EXPECT_EQ(unpack_cpus("1|garbage").size(), 4u);
}

TEST(Host, ReadsTheCgroupsLimit) {
  EXPECT_EQ(cores_of_cpu_max("max 100000"), 0u);
  EXPECT_EQ(cores_of_cpu_max("200000 100000"), 2u);
  EXPECT_EQ(cores_of_cpu_max("150000 100000"), 2u) << "a part of a core is a core";
  EXPECT_EQ(cores_of_cpu_max("10000 100000"), 1u);
  EXPECT_EQ(cores_of_cpu_max(""), 0u);
  EXPECT_EQ(cores_of_cpu_max("garbage"), 0u);
  EXPECT_EQ(cores_of_cpu_max("100000 0"), 0u);
}

}  // namespace
}  // namespace tutti
