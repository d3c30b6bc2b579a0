// The bandwidth of one link of each kind except NVLink-C2C, in 10^9 bytes of payload per second and direction. It is
// used for the predefined machines, and if a file or the hardware does not report the bandwidth of a link itself. Pure
// functions; may be called by any thread.
//
// The numbers are those in the source code of NCCL and RCCL, unless a comment below states otherwise.
#pragma once

#include <cstdint>
#include <string_view>

#include "topology/graph.h"

namespace tutti {

// PCI Express: 12 GB/s for 16 lanes of generation 3 (8 GT/s), and in proportion for other speeds and numbers of lanes.
// (For 2.5 and 5 GT/s, NCCL's numbers are 20% lower than that.) An unknown speed or number of lanes (0) is taken as 8
// GT/s or 16 lanes.
inline constexpr double kPciGbytesPerGigatransferLane = 12.0 / (8 * 16);
inline constexpr double kPciDefaultGigatransfers = 8;
inline constexpr std::uint32_t kPciDefaultLanes = 16;
constexpr double pci_gbytes_per_s(double gigatransfers_per_s, std::uint32_t lanes) {
  return (gigatransfers_per_s > 0 ? gigatransfers_per_s : kPciDefaultGigatransfers) *
         (lanes > 0 ? lanes : kPciDefaultLanes) * kPciGbytesPerGigatransferLane;
}
inline double pci_gbytes_per_s(const PciInfo& pci) { return pci_gbytes_per_s(pci.gigatransfers_per_s, pci.width); }

// One NVLink of a GPU with this compute capability (90 is sm_90; 0: unknown). NCCL's numbers: 18 for Pascal (and here
// for any older GPU), 12 for sm_86, 20 for all other GPUs from sm_70 to sm_89 and for an unknown GPU, 20.6 for Hopper,
// 40.1 from Blackwell on.
constexpr double nvlink_gbytes_per_s(std::int32_t capability) {
  if (capability >= 100) return 40.1;
  if (capability >= 90) return 20.6;
  if (capability == 86) return 12;
  if (capability >= 70 || capability == 0) return 20;
  return 18;
}

// One xGMI link of a GPU with this architecture, as RCCL writes it ("906", "910", "942", "gfx90a"). RCCL's numbers: 24
// for Vega 20 and MI100, 36 for MI200, 48 for MI300. MI350 ("950") is taken as MI300, and any other or unknown GPU as
// Vega 20.
constexpr double xgmi_gbytes_per_s(std::string_view gcn) {
  if (gcn.starts_with("gfx")) gcn.remove_prefix(3);
  if (gcn.starts_with("94") || gcn.starts_with("95")) return 48;
  if (gcn == "910" || gcn.starts_with("90a")) return 36;
  return 24;
}

// The link between two sockets. NCCL's numbers: for Intel, depending on the model number, 10 from Skylake on, 22 from
// Sapphire Rapids on, 40 from Emerald Rapids on, 6 for lower or unknown numbers (for example Broadwell); 16 for AMD, 32
// for POWER, 6 for ARM. 10 for any other or unknown vendor, which is not NCCL's number.
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
