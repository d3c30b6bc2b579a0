// What this machine has, as far as the host runtime needs it. A value; measured once per communicator.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

struct HostTopology {
  std::uint32_t cores = 1;     // that this process may use: affinity and, where it is lower, the cgroup's CPU limit
  std::uint64_t l2_bytes = 0;  // of one core; 0: unknown
  std::uint64_t last_level_bytes = 0;  // of the largest shared cache; 0: unknown

  bool operator==(const HostTopology&) const = default;
};

// Reads hwloc and, on Linux, the cgroup's cpu.max. Never fails: what cannot be read keeps its default.
HostTopology discover_host();

// The number of whole cores that a cgroup v2 `cpu.max` line ("max 100000", "150000 100000") allows, rounded up; 0: no
// limit.
std::uint32_t cores_of_cpu_max(const std::string& line);

}  // namespace tutti
