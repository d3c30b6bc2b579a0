// How much memory this process and its neighbours can still take before the kernel kills one of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

namespace tutti {

inline constexpr std::uint64_t kUnlimitedMemory = std::numeric_limits<std::uint64_t>::max();

struct AvailableMemory {
  std::uint64_t machine_bytes = kUnlimitedMemory;  // MemAvailable of /proc/meminfo: free, or free without swapping
  std::uint64_t group_bytes = kUnlimitedMemory;    // what the tightest memory cgroup that contains the process leaves
  std::string group;                               // the path of that cgroup; empty: no cgroup has a limit
  std::uint64_t address_bytes = kUnlimitedMemory;  // of address space that `ulimit -v` leaves to this process alone

  std::uint64_t shared_bytes() const { return std::min(machine_bytes, group_bytes); }
  std::uint64_t bytes() const { return std::min(shared_bytes(), address_bytes); }
  std::string_view limit() const;  // which of them is least, for people: "of this machine", ...
};

// Reads the kernel's files, of cgroup version 1 and 2. Never fails: what cannot be read counts as unlimited. `root` is
// "/" but for tests. Any thread.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

}  // namespace tutti
