// NVML, the library that knows how GPUs are connected, opened at run time from the driver's installation. Topology and
// tools ask it; nothing needs it to run. Any thread; made once by whoever wants it, shut down when it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/result.h"

namespace tutti::cuda {

inline constexpr std::uint32_t kMaxNvLinks = 18;  // of one GPU; NVML's own limit

// Whether one GPU can reach another's memory, and how.
struct PeerReach {
  bool read = false;
  bool write = false;
  bool nvlink = false;
  bool atomics = false;
  bool operator==(const PeerReach&) const = default;
};

// One NVLink that is up.
struct NvLink {
  enum class Remote : std::uint8_t { kGpu, kSwitch, kOther };
  std::uint32_t link = 0;  // its number on this GPU
  Remote remote = Remote::kOther;
  std::string remote_pci_id;         // as GpuInfo::pci_id; what stands there for a switch is the driver's affair
  std::uint32_t version_tenths = 0;  // 40 is NVLink 4.0; 0: not told
  bool operator==(const NvLink&) const = default;
};

struct GpuInfo {
  std::uint32_t index = 0;  // NVML's, which CUDA_VISIBLE_DEVICES does not change: match by PCI id or UUID
  std::string name;
  std::string uuid;                 // "GPU-..."
  std::string pci_id;               // "0000:3b:00.0", lower case, the form of sysfs
  std::optional<bool> mig_enabled;  // nothing where the GPU has no MIG
  std::vector<NvLink> links;
};

struct NvmlApi;

class Nvml {
 public:
  // Errors (kUnsupported): the library is absent or too old, or its driver is not running.
  static Result<Nvml> open();
  Nvml(Nvml&&) noexcept;
  Nvml& operator=(Nvml&&) noexcept;
  ~Nvml();

  Result<std::uint32_t> gpu_count() const;
  Result<GpuInfo> gpu(std::uint32_t index) const;
  Result<PeerReach> reach(std::uint32_t from, std::uint32_t to) const;  // by index; different ones

 private:
  explicit Nvml(std::unique_ptr<NvmlApi> api);
  std::unique_ptr<NvmlApi> api_;
};

}  // namespace tutti::cuda
