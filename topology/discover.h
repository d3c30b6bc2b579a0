// Builds the Graph of this machine: CPUs from hwloc, PCI devices and NICs from sysfs, GPUs and NVLink from the driver
// and NVML (through topology/gpus.h). Only the `tutti` command and tests link it (tutti::topology_hwloc). Must be
// called by one thread at a time.
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
  std::vector<std::string> notes{};  // sentences for the user: each names a part that was left out or an assumption

  bool operator==(const Discovery&) const = default;
};

// If gpus.no_driver is empty, the GPUs are those of `gpus`, with the driver's numbers; MIG slices of a GPU are one GPU.
// Otherwise the GPUs are the devices in sysfs with the PCI class of a GPU. NICs that are down are left out. A part is
// connected to the first NUMA node if sysfs shows neither its NUMA node nor CPUs that are near it. Errors: those of
// discover_processors().
Result<Discovery> discover(const DiscoverOptions& options, const GpuTopology& gpus);

}  // namespace tutti
