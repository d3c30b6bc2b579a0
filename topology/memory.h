// Determines how much memory this process and the others on the machine can still use before the kernel kills one of
// them.
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
  // MemAvailable in /proc/meminfo: free, or can be freed without swapping
  std::uint64_t machine_bytes = kUnlimitedMemory;
  // The least memory that is left in any of the memory cgroups that contain the process.
  std::uint64_t group_bytes = kUnlimitedMemory;
  std::string group;                               // the path of that cgroup; empty: no cgroup has a limit
  std::uint64_t address_bytes = kUnlimitedMemory;  // address space that `ulimit -v` leaves to this process alone

  std::uint64_t shared_bytes() const { return std::min(machine_bytes, group_bytes); }
  std::uint64_t bytes() const { return std::min(shared_bytes(), address_bytes); }
  std::string_view limit() const;  // the smallest of these limits, for people: "of this machine", ...
};

// Reads files of the kernel, for cgroup versions 1 and 2. Never fails: a limit that cannot be read counts as
// unlimited. `root` is "/" except in tests. May be called by any thread.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

}  // namespace tutti
