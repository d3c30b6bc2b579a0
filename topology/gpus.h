// The GPUs that this process may use, and how they access each other's memory, as `tutti topo` shows it. The
// information comes from the CUDA driver, and from NVML for NVLink and MIG. The types are value types; discover_gpus()
// may be called by any thread.
//
// GPU numbers are those of the driver. If CUDA_VISIBLE_DEVICES is set, they count only the GPUs that it lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/result.h"

namespace tutti {

struct Gpu {
  std::string name{};
  std::string uuid{};    // "GPU-" and 32 hexadecimal digits with dashes
  std::string pci_id{};  // for example "0000:3b:00.0", in lower case, as in sysfs
  std::uint64_t memory_bytes = 0;
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  std::optional<bool> mig_enabled{};  // empty if the GPU does not support MIG, or NVML does not report it

  bool operator==(const Gpu&) const = default;
};

// The NVLinks between two GPUs, either direct or through NVSwitches that both GPUs are connected to.
struct NvLinks {
  // The number of links between the GPUs. Through a switch: each GPU has a number of links to switches, and this is the
  // smaller one.
  std::uint32_t count = 0;
  // Ten times the lowest version of a link: 40 is NVLink 4.0. 0: there are no links, or the version of one is unknown.
  std::uint32_t version_tenths = 0;
  bool by_switch = false;  // true: through a switch

  bool operator==(const NvLinks&) const = default;
};

// How a kernel on one GPU accesses the memory of another GPU.
struct GpuPath {
  bool same_gpu = false;  // the same GPU, or another MIG slice of it
  bool access = false;    // the driver permits the access; always true for the memory of the GPU itself
  bool atomics = false;   // native atomic operations on the other GPU's memory are possible; always true for itself
  NvLinks nvlinks{};      // count 0: the path is PCIe, it is the same GPU, or NVML does not report the links

  bool operator==(const GpuPath&) const = default;
};

struct GpuTopology {
  int driver_version = 0;  // 13020 is CUDA 13.2; 0: there is no usable driver
  std::string no_driver;   // the reason why there is no usable driver, and a remedy if known; empty if there is one
  // The reason why NVML cannot be used, so that NVLink and MIG are unknown. Empty if it can be used, or if there is no
  // usable driver.
  std::string no_nvml;
  std::vector<Gpu> gpus;
  std::vector<GpuPath> paths;  // index: from * gpus.size() + to

  const GpuPath& path(std::size_t from, std::size_t to) const { return paths[from * gpus.size() + to]; }
  bool operator==(const GpuTopology&) const = default;
};

// Examines the GPUs. If there is no usable driver, succeeds with no GPUs and the reason in no_driver. Without NVML,
// succeeds with the reason in no_nvml. Errors: calls of the driver or of NVML that fail after these were opened. If
// NVML only fails to report links or the MIG mode, they count as unknown, and that is no error.
Result<GpuTopology> discover_gpus();

// A pair of GPUs: GPU `from` cannot access the memory of GPU `to`.
struct GpuPair {
  std::size_t from = 0;
  std::size_t to = 0;

  bool operator==(const GpuPair&) const = default;
};
// Returns the first such pair, or nothing if all GPUs can access each other.
std::optional<GpuPair> first_unreachable(const GpuTopology& topology);

}  // namespace tutti
