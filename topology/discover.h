// Builds the Graph of this machine: CPUs from hwloc, PCI and NICs from sysfs, GPUs and NVLink from the driver and
// NVML (through topology/gpus.h). For the tool and tests (tutti::topology_hwloc). Call it from one thread at a time.
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
  std::filesystem::path root = "/";  // the folder that contains "sys/bus/pci" and "sys/class"
  std::string synthetic{};           // see discover_processors()
};

struct Discovery {
  Graph graph{};
  Processors processors{};
  std::vector<std::string> notes{};  // what was left out or assumed, and why

  bool operator==(const Discovery&) const = default;
};

// If there is a driver, the GPUs are those of `gpus`, with the driver's numbers. Otherwise they are the devices in
// sysfs whose PCI class is that of a GPU. NICs that are down are left out. Parts whose NUMA node is unknown are
// placed at the first one. Errors: those of discover_processors().
Result<Discovery> discover(const DiscoverOptions& options, const GpuTopology& gpus);

}  // namespace tutti
