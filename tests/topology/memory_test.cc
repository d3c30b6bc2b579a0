// Tests of available_memory(): the available memory of the machine, and the limits of the cgroups that contain this
// process.
#include "topology/memory.h"

#include <gtest/gtest.h>

#include "tests/topology/test_root.h"

namespace tutti {
namespace {

void write_machine(const TestRoot& root) {
  root.write("proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n");
}

TEST(AvailableMemory, WithoutLimitsIsTheMachines) {
  const TestRoot root;
  write_machine(root);
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/job/memory.current", "4096\n");
  const AvailableMemory memory = available_memory(root.path());
  EXPECT_EQ(memory.machine_bytes, 2048u * 1024);
  EXPECT_EQ(memory.group_bytes, kUnlimitedMemory);
  EXPECT_TRUE(memory.group.empty());
}

TEST(AvailableMemory, IsWhatTheTightestCgroupAboveTheProcessLeaves) {
  const TestRoot root;
  write_machine(root);
  root.write("proc/self/cgroup", "1:name=systemd:/\n0::/job/step/task\n");
  root.write("sys/fs/cgroup/job/step/task/memory.max", "max\n");
  root.write("sys/fs/cgroup/job/step/task/memory.current", "100\n");
  root.write("sys/fs/cgroup/job/step/memory.max", "900000\n");
  root.write("sys/fs/cgroup/job/step/memory.current", "100000\n");
  root.write("sys/fs/cgroup/job/memory.max", "1000000\n");
  root.write("sys/fs/cgroup/job/memory.current", "600000\n");
  root.write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 50000\n");
  const AvailableMemory memory = available_memory(root.path());
  EXPECT_EQ(memory.group_bytes, 450'000u) << "cached file pages can be reclaimed, so they count as available";
  EXPECT_EQ(memory.group, "/job");
  EXPECT_EQ(memory.shared_bytes(), 450'000u);
}

TEST(AvailableMemory, KnowsCgroupsOfVersionOneAndContainersThatSeeTheirOwnFolderOnly) {
  const TestRoot root;
  write_machine(root);
  root.write("proc/self/cgroup", "4:cpu,memory:/docker/0123\n3:cpuset:/x\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n");
  AvailableMemory memory = available_memory(root.path());
  EXPECT_EQ(memory.group_bytes, 0u) << "more memory is used than the limit allows";
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  memory = available_memory(root.path());
  EXPECT_EQ(memory.group_bytes, kUnlimitedMemory) << "this number means that there is no limit";
}

TEST(AvailableMemory, CannotBeReadIsUnlimited) {
  const TestRoot root;
  EXPECT_EQ(available_memory(root.path()).shared_bytes(), kUnlimitedMemory);
  EXPECT_LT(available_memory().shared_bytes(), kUnlimitedMemory) << "the memory of this machine";
}

}  // namespace
}  // namespace tutti
