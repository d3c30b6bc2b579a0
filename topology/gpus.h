// The GPUs that this process may use, and how they reach each other's memory: what `tutti topo` shows. A value; asked
// of the CUDA driver, and of NVML for NVLink. Any thread.
//
// Numbers are the driver's: those of CUDA_VISIBLE_DEVICES, where that is set.
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
  std::string uuid{};    // "GPU-" and 32 digits with dashes
  std::string pci_id{};  // "0000:3b:00.0", lower case, the form of sysfs
  std::uint64_t memory_bytes = 0;
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  std::optional<bool> mig_enabled{};  // nothing where it has no MIG or NVML does not tell

  bool operator==(const Gpu&) const = default;
};

// NVLinks between two GPUs, directly or by a switch that both are at.
struct NvLinks {
  std::uint32_t count = 0;           // by a switch: of the GPU that has fewer
  std::uint32_t version_tenths = 0;  // of the oldest of them: 40 is NVLink 4.0; 0: not told
  bool by_switch = false;

  bool operator==(const NvLinks&) const = default;
};

// How a kernel on one GPU reaches the memory of another.
struct GpuPath {
  bool same_gpu = false;  // itself, or another slice of one that is cut up
  bool access = false;    // the driver lets it; of the same number always
  bool atomics = false;   // in the other's memory, by the link itself
  NvLinks nvlinks{};      // count 0: by PCIe, or NVML does not tell

  bool operator==(const GpuPath&) const = default;
};

struct GpuTopology {
  int driver_version = 0;  // 13020 is CUDA 13.2; 0: none that can be used
  std::string no_driver;   // why, and what to do; empty where there is one
  std::string no_nvml;     // why nothing is known of NVLink and MIG; empty where it is
  std::vector<Gpu> gpus;
  std::vector<GpuPath> paths;  // from * gpus.size() + to

  const GpuPath& path(std::size_t from, std::size_t to) const { return paths[from * gpus.size() + to]; }
  bool operator==(const GpuTopology&) const = default;
};

// No driver and no GPU are no error: no_driver says why. Errors: what the driver or NVML fails with once it has begun.
Result<GpuTopology> discover_gpus();

// Two GPUs, the first that cannot reach the second; nothing where all reach each other.
struct GpuPair {
  std::size_t from = 0;
  std::size_t to = 0;

  bool operator==(const GpuPair&) const = default;
};
std::optional<GpuPair> first_unreachable(const GpuTopology& topology);

}  // namespace tutti
