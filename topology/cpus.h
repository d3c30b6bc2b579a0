// The CPUs of a machine by NUMA node, and its caches, from hwloc. The tool and tests link this (tutti::topology_hwloc);
// the library that users load asks the kernel itself (topology/host.h), as hwloc's plugins would bring X11 and more
// into a user's program. To be called from one thread at a time.
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
  std::vector<std::uint32_t> cpus{};  // logical processors, rising

  bool operator==(const NumaNode&) const = default;
};

// Caches of one kind, all alike.
struct CacheKind {
  std::string name{};  // "L2", "L1d"
  std::uint64_t bytes = 0;
  std::uint32_t count = 0;
  std::uint32_t cpus_each = 0;  // logical processors that share one

  bool operator==(const CacheKind&) const = default;
};

struct Processors {
  std::vector<NumaNode> nodes{};  // at least one, by number
  std::uint32_t packages = 0;
  std::uint32_t cores = 0;
  std::vector<CacheKind> caches{};  // the largest level first

  bool operator==(const Processors&) const = default;
};

// `synthetic`: hwloc's words for a made-up machine ("pack:2 numa:1 core:4 pu:1"), for tests; empty: this machine.
// Errors: kSystem where hwloc cannot tell, kInvalidArgument for words that it does not understand.
Result<Processors> discover_processors(const std::string& synthetic);

}  // namespace tutti
