// HostTopology: the properties of this machine that the library needs on the host, for example to predict costs. A
// value type. The functions have no state and may be called by any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct HostTopology {
  std::vector<bool> cpus{true};        // indexed by CPU number: true if the calling thread may run on the CPU
  std::uint32_t cpu_limit = 0;         // cgroup_cpu_limit(): in cores; 0: no limit known
  std::uint64_t l2_bytes = 0;          // size of the L2 cache of one core; 0: unknown
  std::uint64_t last_level_bytes = 0;  // size of the L3 cache, or of the L2 cache if that is larger; 0: unknown

  bool operator==(const HostTopology&) const = default;
};

// Asks the kernel: sched_getaffinity(), sysfs for the caches of the first permitted CPU, the limits of cgroups. hwloc
// is not used, because it would load plugins, and X11 with them, into the program of the user. Never fails: a property
// that cannot be read keeps its default.
HostTopology discover_host();

// The caches of one core. read_caches() reads them from the core's folder in sysfs, for example
// "/sys/devices/system/cpu/cpu0/cache". A size is 0 if it is unknown or if there is no such cache.
struct CacheSizes {
  std::uint64_t l2_bytes = 0;
  std::uint64_t l3_bytes = 0;
};
CacheSizes read_caches(const std::string& folder);

// Parses sizes such as "2048K" and "32M". Returns 0 if the text does not begin with a number.
std::uint64_t bytes_of_size(const std::string& text);

// Returns the number of CPUs that are in at least one of the sets `cpus`, at least 1 and at most `cpu_limit` (0: no
// limit). There may be one set for each rank; they are united, because each rank may be bound to a CPU of its own.
std::uint32_t cores_of(const std::vector<std::vector<bool>>& cpus, std::uint32_t cpu_limit);

// Converts a set of CPUs to text and back: four CPUs per hexadecimal digit, the digit of the CPUs 0 to 3 first. The
// lowest bit of a digit is the CPU with the lowest number. Zeros at the end are left out. unpack_cpus() stops at the
// first character that is not a lower-case hexadecimal digit.
std::string pack_cpus(const std::vector<bool>& cpus);
std::vector<bool> unpack_cpus(std::string_view text);

// Returns the number of cores whose time the cgroups that contain this process may use, rounded up: that of the cgroup
// with the least. Returns 0 if no limit is known. Limits that this process cannot see, for example those outside its
// container, are not considered. `root`, the folder of the kernel's files, is "/" except in tests.
std::uint32_t cgroup_cpu_limit(const std::string& root = "/");

// Parses a limit on CPU time: the line of cpu.max of a cgroup of version 2, or the quota and the period of version 1.
// Returns the number of cores that it permits, rounded up: 2 for "150000 100000" (1.5 cores). Returns 0 if there is no
// limit ("max 100000" or "-1 100000") or if the line is invalid.
std::uint32_t cores_of_cpu_max(const std::string& line);

}  // namespace tutti
