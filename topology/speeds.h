// The bandwidth of one link of each kind, in 10^9 bytes of payload per second and direction. It is used if a file or
// the hardware reports only the kind and the number of links. Pure functions; may be called by any thread.
//
// The numbers are those that NCCL and RCCL use. According to the source code of both, they are close to measurements.
#pragma once

#include <cstdint>
#include <string_view>

#include "topology/graph.h"

namespace tutti {

// PCI Express: 12 GB/s for 16 lanes of generation 3 (8 GT/s), and in proportion for other speeds and numbers of
// lanes. An unknown speed or number of lanes (0) is taken as 8 GT/s or 16 lanes.
inline constexpr double kPciGbytesPerGigatransferLane = 12.0 / (8 * 16);
inline constexpr double kPciDefaultGigatransfers = 8;
inline constexpr std::uint32_t kPciDefaultLanes = 16;
constexpr double pci_gbytes_per_s(double gigatransfers_per_s, std::uint32_t lanes) {
  return (gigatransfers_per_s > 0 ? gigatransfers_per_s : kPciDefaultGigatransfers) *
         (lanes > 0 ? lanes : kPciDefaultLanes) * kPciGbytesPerGigatransferLane;
}
inline double pci_gbytes_per_s(const PciInfo& pci) { return pci_gbytes_per_s(pci.gigatransfers_per_s, pci.width); }

// One NVLink of a GPU with this compute capability (90 is sm_90; 0: unknown). NCCL's numbers: 18 for Pascal, 12 for
// sm_86, 20 for V100, A100 and an unknown GPU, 20.6 for Hopper, 40.1 for Blackwell.
constexpr double nvlink_gbytes_per_s(std::int32_t capability) {
  if (capability >= 100) return 40.1;
  if (capability >= 90) return 20.6;
  if (capability == 86) return 12;
  if (capability >= 70 || capability == 0) return 20;
  return 18;
}

// One xGMI link of a GPU with this architecture, as RCCL writes it ("906", "910", "942", "gfx90a"). RCCL's numbers:
// 24 for Vega 20 and MI100, 36 for MI200, 48 for MI300.
constexpr double xgmi_gbytes_per_s(std::string_view gcn) {
  if (gcn.starts_with("gfx")) gcn.remove_prefix(3);
  if (gcn.starts_with("94") || gcn.starts_with("95")) return 48;
  if (gcn == "910" || gcn.starts_with("90a")) return 36;
  return 24;
}

// The link between two sockets. NCCL's numbers: 6 for Broadwell, 10 for Skylake, 22 for Sapphire Rapids, 40 for
// Emerald Rapids, 16 for AMD, 32 for POWER, 6 for ARM, 10 for an unknown vendor.
inline double cpu_link_gbytes_per_s(const CpuInfo& cpu) {
  constexpr std::int32_t kSkylake = 0x55;
  constexpr std::int32_t kSapphireRapids = 0x8F;
  constexpr std::int32_t kEmeraldRapids = 0xCF;
  if (cpu.arch.starts_with("ppc")) return 32;
  if (cpu.arch.starts_with("arm") || cpu.arch == "aarch64") return 6;
  if (cpu.vendor == "AuthenticAMD") return 16;
  if (cpu.vendor != "GenuineIntel") return 10;
  if (cpu.model >= kEmeraldRapids) return 40;
  if (cpu.model >= kSapphireRapids) return 22;
  return cpu.model >= kSkylake ? 10 : 6;
}

}  // namespace tutti
