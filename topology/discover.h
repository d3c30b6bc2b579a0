// This machine as a Graph: CPUs from hwloc, PCI and NICs from sysfs, GPUs and NVLink from the driver and NVML (which
// topology/gpus.h asks). For the tool and tests (tutti::topology_hwloc). One thread at a time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "topology/cpus.h"
#include "topology/gpus.h"
#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti {

struct DiscoverOptions {
  std::filesystem::path root = "/";  // what "sys/bus/pci" and "sys/class" lie below
  std::string synthetic{};           // as of discover_processors()
};

struct Discovery {
  Graph graph{};
  Processors processors{};
  std::vector<std::string> notes{};  // what was left out or assumed, and why

  bool operator==(const Discovery&) const = default;
};

// The GPUs are those of `gpus` where there is a driver, with its numbers; else those that sysfs shows by their class.
// NICs that are down are left out. Parts whose NUMA node is not told stand at the first one. Errors: as
// discover_processors().
Result<Discovery> discover(const DiscoverOptions& options, const GpuTopology& gpus);

}  // namespace tutti
