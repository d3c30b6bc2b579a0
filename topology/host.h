// What this machine has, as far as the host runtime needs it. A value; measured once per communicator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct HostTopology {
  std::vector<bool> cpus{true};        // by number: whether this process may run there
  std::uint32_t cpu_limit = 0;         // of the cgroup, in cores; 0: none
  std::uint64_t l2_bytes = 0;          // of one core; 0: unknown
  std::uint64_t last_level_bytes = 0;  // of the largest shared cache; 0: unknown

  bool operator==(const HostTopology&) const = default;
};

// Reads the kernel's files (sysfs, the cgroup's cpu.max), as a library that knows all of the machine would bring its
// plugins, and X11 with them, into the user's program. Never fails: what cannot be read keeps its default.
HostTopology discover_host();

// Of the core that the folder describes ("/sys/devices/system/cpu/cpu0/cache"); 0: unknown.
struct CacheSizes {
  std::uint64_t l2_bytes = 0;
  std::uint64_t l3_bytes = 0;
};
CacheSizes read_caches(const std::filesystem::path& folder);

// "2048K", "32M"; 0: no number.
std::uint64_t bytes_of_size(const std::string& text);

// The cores that processes with these CPUs have together, at least 1. Ranks may be bound to one core each.
std::uint32_t cores_of(const std::vector<std::vector<bool>>& cpus, std::uint32_t cpu_limit);

// A set of CPUs as text, four to a hexadecimal digit, the lowest first; what is no such digit ends it.
std::string pack_cpus(const std::vector<bool>& cpus);
std::vector<bool> unpack_cpus(std::string_view text);

// The number of whole cores that a cgroup v2 `cpu.max` line ("max 100000", "150000 100000") allows, rounded up; 0: no
// limit.
std::uint32_t cores_of_cpu_max(const std::string& line);

}  // namespace tutti
