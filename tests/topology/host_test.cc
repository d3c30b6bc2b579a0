#include "topology/host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace tutti {
namespace {

TEST(Host, HasNoMoreCoresThanTheMachine) {
  const HostTopology host = discover_host();
  EXPECT_GE(host.cores, 1u);
  EXPECT_LE(host.cores, std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_GE(host.last_level_bytes, host.l2_bytes);
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
