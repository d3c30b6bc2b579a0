// The CPUs of a machine by NUMA node, and its caches, from hwloc. Only the tool and tests link this
// (tutti::topology_hwloc). The library that users load reads the files of the kernel instead (topology/host.h),
// because the plugins of hwloc would load X11 and other libraries into the program of the user. Call it from one
// thread at a time.
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
  std::vector<CacheGroup> caches{};  // the highest level first

  bool operator==(const Processors&) const = default;
};

// `synthetic`: the description of an invented machine in the format of hwloc, for example "pack:2 numa:1 core:4
// pu:1", for tests. If it is empty, this machine is examined. Errors: kSystem if hwloc fails, kInvalidArgument if
// hwloc cannot parse the description.
Result<Processors> discover_processors(const std::string& synthetic);

}  // namespace tutti
