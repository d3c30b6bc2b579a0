// The CPUs of a machine by NUMA node, and its caches, from hwloc. Only the `tutti` command and tests link this code
// (tutti::topology_hwloc). The library that users load reads the files of the kernel instead (topology/host.h),
// because the plugins of hwloc load X11 and other libraries into the program of the user unless an environment variable
// disables them. While discover_processors() runs, no other thread may call it or access the environment, because it
// sets that variable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti {

struct NumaNode {
  std::int32_t number = 0;
  CpuInfo cpu{};
  std::uint64_t memory_bytes = 0;
  std::vector<std::uint32_t> cpus{};  // logical processors, in ascending order

  bool operator==(const NumaNode&) const = default;
};

// A number of identical caches.
struct CacheGroup {
  std::string name{};  // for example "L2" or "L1d"
  std::uint64_t bytes = 0;
  std::uint32_t count = 0;
  std::uint32_t cpus_each = 0;  // number of logical processors that share one cache

  bool operator==(const CacheGroup&) const = default;
};

struct Processors {
  std::vector<NumaNode> nodes{};  // at least one; sorted by number
  std::uint32_t packages = 0;
  std::uint32_t cores = 0;
  std::vector<CacheGroup> caches{};  // sorted by level, the highest level (for example L3) first

  bool operator==(const Processors&) const = default;
};

// Returns the processors of this machine if `synthetic` is empty. For tests, `synthetic` describes an invented
// machine in the format of hwloc, for example "pack:2 numa:1 core:4 pu:1". Errors: kSystem if hwloc fails or finds no
// NUMA node, kInvalidArgument if hwloc cannot parse the description.
Result<Processors> discover_processors(const std::string& synthetic);

}  // namespace tutti
