// Tests of the information about this machine's CPUs: their number, the limit of a cgroup, and the sizes of caches.
#include "topology/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/topology/test_root.h"

namespace {
// The number of CPUs of the simulated kernel. 0 means that the real kernel is used.
std::size_t kernel_cpus = 0;
}  // namespace

// Replaces the C library's sched_getaffinity(). Like the kernel, it refuses a set that is too small for all CPUs.
extern "C" int sched_getaffinity(pid_t process, std::size_t bytes, cpu_set_t* set) noexcept {
  if (kernel_cpus == 0) return syscall(SYS_sched_getaffinity, process, bytes, set) < 0 ? -1 : 0;
  if (bytes * 8 < kernel_cpus) {
    errno = EINVAL;
    return -1;
  }
  std::memset(set, 0, bytes);
  const std::size_t last = kernel_cpus - 1;
  reinterpret_cast<unsigned char*>(set)[last / 8] = static_cast<unsigned char>(1U << last % 8);
  return 0;
}

namespace tutti {
namespace {

TEST(Host, SeesTheCpusOfLargeMachines) {
  for (const std::size_t cpus : {std::size_t{1024}, std::size_t{1025}, std::size_t{8192}}) {
    kernel_cpus = cpus;
    const std::vector<bool> found = discover_host().cpus;
    kernel_cpus = 0;
    ASSERT_GE(found.size(), cpus);
    EXPECT_TRUE(found[cpus - 1]) << cpus;
    EXPECT_EQ(std::count(found.begin(), found.end(), true), 1) << cpus;
    EXPECT_LT(pack_cpus(found).size(), 2100u) << "it must fit into one message of the set-up";
  }
}

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
  EXPECT_EQ(cores_of({first, far}, 7), 7u) << "not more than the cgroup allows";
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

TEST(Host, ReadsTheCachesOfACore) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tutti_caches";
  const auto cache = [&](int index, const char* level, const char* type, const char* size) {
    const std::filesystem::path place = folder / ("index" + std::to_string(index));
    std::filesystem::create_directories(place);
    std::ofstream(place / "level") << level << "\n";
    std::ofstream(place / "type") << type << "\n";
    std::ofstream(place / "size") << size << "\n";
  };
  std::filesystem::remove_all(folder);
  EXPECT_EQ(read_caches(folder).l2_bytes, 0u) << "the folder does not exist";
  cache(0, "1", "Data", "48K");
  cache(1, "2", "Unified", "2048K");
  EXPECT_EQ(read_caches(folder).l3_bytes, 0u) << "there is no cache of level 3";
  cache(2, "2", "Instruction", "1M");
  cache(3, "3", "Unified", "480M");
  EXPECT_EQ(read_caches(folder).l2_bytes, 2048u * 1024);
  EXPECT_EQ(read_caches(folder).l3_bytes, 480u * 1024 * 1024);
  std::filesystem::remove_all(folder);
}

TEST(Host, ReadsSizes) {
  EXPECT_EQ(bytes_of_size("512"), 512u);
  EXPECT_EQ(bytes_of_size("2G"), 2ull << 30);
  EXPECT_EQ(bytes_of_size(""), 0u);
  EXPECT_EQ(bytes_of_size("K"), 0u);
}

TEST(Host, HasTheCachesThatTheCLibraryKnows) {
  const HostTopology host = discover_host();
  const long l2_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE), l3_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (host.l2_bytes == 0 || l2_bytes <= 0)
    GTEST_SKIP() << "the kernel or the C library does not report the cache sizes";
  EXPECT_EQ(host.l2_bytes, static_cast<std::uint64_t>(l2_bytes));
  // On a virtual machine the C library, which queries the CPU, and the kernel may report different last-level
  // caches. One reports the whole cache, and the other the part that these CPUs have.
  if (l3_bytes > 0) {
    EXPECT_GE(host.last_level_bytes, host.l2_bytes);
    EXPECT_LE(host.last_level_bytes, static_cast<std::uint64_t>(std::max(l2_bytes, l3_bytes)));
  }
}

TEST(Host, ReadsTheCgroupsLimit) {
  EXPECT_EQ(cores_of_cpu_max("max 100000"), 0u);
  EXPECT_EQ(cores_of_cpu_max("200000 100000"), 2u);
  EXPECT_EQ(cores_of_cpu_max("150000 100000"), 2u) << "a part of a core is rounded up to a core";
  EXPECT_EQ(cores_of_cpu_max("10000 100000"), 1u);
  EXPECT_EQ(cores_of_cpu_max(""), 0u);
  EXPECT_EQ(cores_of_cpu_max("garbage"), 0u);
  EXPECT_EQ(cores_of_cpu_max("100000 0"), 0u);
  EXPECT_EQ(cores_of_cpu_max("-1 100000"), 0u) << "version 1 without a limit";
  EXPECT_EQ(cores_of_cpu_max("9223372036854775807 1"), 2147483647u);
}

TEST(CgroupCpuLimit, IsTheLeastOfAllCgroupsThatContainTheProcess) {
  const TestRoot root;
  root.write("proc/self/cgroup", "1:name=systemd:/\n0::/job/step/task\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 0u) << "no files";
  root.write("sys/fs/cgroup/job/step/task/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 0u);
  root.write("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 2u);
  root.write("sys/fs/cgroup/job/cpu.max", "800000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 2u);
  root.write("sys/fs/cgroup/job/cpu.max", "20000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 1u);
  root.write("sys/fs/cgroup/other/cpu.max", "10000 100000\n");
  root.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 1u);
}

TEST(CgroupCpuLimit, IsFoundInAContainerAndWithVersionOne) {
  const TestRoot container;
  container.write("proc/self/cgroup", "0::/docker/0123\n");
  container.write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(container.path()), 3u);
  const TestRoot old;
  old.write("proc/self/cgroup", "4:cpu,cpuacct:/job/0\n3:cpuset:/x\n0::/\n");
  old.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  old.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_limit(old.path()), 0u);
  old.write("sys/fs/cgroup/cpu/job/0/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(cgroup_cpu_limit(old.path()), 0u) << "the file with the period is missing";
  old.write("sys/fs/cgroup/cpu/job/0/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_limit(old.path()), 1u);
}

}  // namespace
}  // namespace tutti
