// Determines how much memory this process and the others on the machine can still use before the kernel kills one of
// them, and how much address space this process can still use before its allocations fail.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace tutti {

inline constexpr std::uint64_t kUnlimitedMemory = std::numeric_limits<std::uint64_t>::max();

struct AvailableMemory {
  // MemAvailable in /proc/meminfo: memory that is free or can be freed without swapping.
  std::uint64_t machine_bytes = kUnlimitedMemory;
  // The least memory that is left below the limit of any memory cgroup that contains the process. Inactive cached pages
  // of files count as left, because the kernel drops them first. Limits that this process cannot see, for example those
  // outside its container, are not considered.
  std::uint64_t group_bytes = kUnlimitedMemory;
  std::string group;  // the path of the cgroup that determines group_bytes; empty: no limit was found
  // The address space that this process may still use under its limit (`ulimit -v`). It does not concern other
  // processes.
  std::uint64_t address_bytes = kUnlimitedMemory;

  std::uint64_t shared_bytes() const { return std::min(machine_bytes, group_bytes); }
  std::uint64_t bytes() const { return std::min(shared_bytes(), address_bytes); }
  // A text for messages that names the limit that determines bytes(): "of this machine", "limit of a memory cgroup",
  // ...
  std::string_view limit() const;
};

// Reads files of the kernel, for cgroup versions 1 and 2, and asks for the limit of the address space. Never fails: a
// limit that cannot be read counts as unlimited. `root`, the folder of the files, is "/" except in tests. May be called
// by any thread.
AvailableMemory available_memory(const std::string& root = "/");

}  // namespace tutti
