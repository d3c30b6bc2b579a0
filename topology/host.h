// HostTopology: the properties of this machine that the host runtime needs. A value type; measured once per
// communicator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct HostTopology {
  std::vector<bool> cpus{true};        // indexed by CPU number: this process may run on it
  std::uint32_t cpu_limit = 0;         // limit of the cgroup, in cores; 0: no limit
  std::uint64_t l2_bytes = 0;          // for one core; 0: unknown
  std::uint64_t last_level_bytes = 0;  // of the largest shared cache; 0: unknown

  bool operator==(const HostTopology&) const = default;
};

// Reads files of the kernel (sysfs, cpu.max of the cgroup). A library that knows the whole machine would load its
// plugins, and X11 with them, into the program of the user. Never fails: a property that cannot be read keeps its
// default.
HostTopology discover_host();

// The caches of the core that `folder` describes, for example "/sys/devices/system/cpu/cpu0/cache". 0: unknown.
struct CacheSizes {
  std::uint64_t l2_bytes = 0;
  std::uint64_t l3_bytes = 0;
};
CacheSizes read_caches(const std::filesystem::path& folder);

// Parses sizes such as "2048K" and "32M". Returns 0 if the text does not begin with a number.
std::uint64_t bytes_of_size(const std::string& text);

// The number of CPUs that processes with these sets have together, at least 1. If `cpu_limit` is not 0, the result is
// at most `cpu_limit`. The sets are united, because each rank may be bound to a CPU of its own.
std::uint32_t cores_of(const std::vector<std::vector<bool>>& cpus, std::uint32_t cpu_limit);

// Converts a set of CPUs to text: four CPUs per hexadecimal digit, the lowest CPUs first. unpack_cpus() stops at the
// first character that is not such a digit.
std::string pack_cpus(const std::vector<bool>& cpus);
std::vector<bool> unpack_cpus(std::string_view text);

// The number of whole cores that a cgroup v2 `cpu.max` line permits, rounded up, for example "150000 100000" (2
// cores) or "max 100000" (no limit). 0: no limit.
std::uint32_t cores_of_cpu_max(const std::string& line);

}  // namespace tutti
