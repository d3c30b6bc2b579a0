// Nvml: NVIDIA's management library, which reports how GPUs are connected. It comes with the driver and is opened at
// run time. Topology discovery, the tools, and set-up with TUTTI_DEVICE_PROTOCOL=ll128 use it; collectives do not need
// it. May be used from any thread. The destructor shuts NVML down.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/driver_types.h"
#include "tutti/result.h"

namespace tutti::cuda {

inline constexpr std::uint32_t kMaxNvLinks = 18;  // per GPU; NVML's own limit

// How one GPU can access the memory of another.
struct PeerAccess {
  bool read = false;
  bool write = false;
  bool nvlink = false;
  bool atomics = false;
  bool operator==(const PeerAccess&) const = default;
};

// One active NVLink of a GPU.
struct NvLink {
  enum class Remote : std::uint8_t { kGpu, kSwitch, kOther };
  std::uint32_t link = 0;  // number of the link on this GPU
  Remote remote = Remote::kOther;
  std::string remote_pci_id;         // in the form of GpuInfo::pci_id; for a switch its meaning depends on the driver
  std::uint32_t version_tenths = 0;  // for example 40 for NVLink 4.0; 0: unknown
  bool operator==(const NvLink&) const = default;
};

struct GpuInfo {
  // NVML's number of the GPU. It can differ from CUDA's device number, for example because NVML ignores
  // CUDA_VISIBLE_DEVICES. So match GPUs by PCI id or UUID.
  std::uint32_t index = 0;
  std::string name;
  std::string uuid;    // "GPU-..."
  std::string pci_id;  // for example "0000:3b:00.0", in lower case, as in sysfs
  // nothing if NVML does not report it, for example because the GPU does not support MIG (multi-instance GPU), or
  // because NVML is too old
  std::optional<bool> mig_enabled;
  std::vector<NvLink> links;
};

// A GPU's UUID as NVML writes it, for example "GPU-fa000000-0000-0000-0000-000000000001".
std::string uuid_text(const CUuuid& uuid);

// Whether NVML reports access by NVLink between every two different GPUs of `gpus`. False if NVML cannot be used, does
// not list one of them, or fails for one of them.
bool are_joined_by_nvlink(std::span<const CUuuid> gpus);

struct NvmlApi;

class Nvml {
 public:
  // Opens and initialises NVML. Errors: kUnsupported, for example if the library does not exist or is too old, if the
  // driver is not running, or if it has another version than the library.
  static Result<Nvml> open();
  Nvml(Nvml&&) noexcept;
  Nvml& operator=(Nvml&&) noexcept;
  ~Nvml();

  Result<std::uint32_t> gpu_count() const;
  Result<GpuInfo> gpu(std::uint32_t index) const;
  // access of GPU `from` to GPU `to`, which are two different NVML numbers
  Result<PeerAccess> reach(std::uint32_t from, std::uint32_t to) const;

 private:
  explicit Nvml(std::unique_ptr<NvmlApi> api);
  std::unique_ptr<NvmlApi> api_;
};

}  // namespace tutti::cuda
