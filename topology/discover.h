// Builds the Graph of this machine: CPUs from hwloc, PCI devices and NICs from sysfs, GPUs and NVLink from the driver
// and NVML (through topology/gpus.h), or GPUs from sysfs if there is no driver. Only the `tutti` command and tests link
// this code (tutti::topology_hwloc). While discover() runs, no other thread may call it or access the environment (see
// cpus.h).
#pragma once

#include <string>
#include <vector>

#include "topology/cpus.h"
#include "topology/gpus.h"
#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti {

struct DiscoverOptions {
  std::string root = "/";   // the folder that contains "sys/bus/pci" and "sys/class"
  std::string synthetic{};  // see discover_processors()
};

struct Discovery {
  Graph graph{};
  Processors processors{};
  std::vector<std::string> notes{};  // sentences for the user, for example about parts that were left out or assumed

  bool operator==(const Discovery&) const = default;
};

// If gpus.no_driver is empty, the GPUs are those of `gpus`, with the driver's numbers; MIG slices of a GPU are one GPU.
// Otherwise the GPUs are the devices in sysfs that are GPUs by their PCI class and vendor (is_gpu_class()). NICs that
// are down are left out. If sysfs does not determine the NUMA node of a part, the first NUMA node is assumed. Errors:
// those of discover_processors().
Result<Discovery> discover(const DiscoverOptions& options, const GpuTopology& gpus);

}  // namespace tutti
