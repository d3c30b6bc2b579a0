// Classifies PCI devices by their class, and some GPUs also by their vendor. Pure functions; may be called by any
// thread.
#pragma once

#include <cstdint>

#include "topology/graph.h"

namespace tutti {

inline constexpr std::uint32_t kPciVendorNvidia = 0x10de;
inline constexpr std::uint32_t kPciVendorAmd = 0x1002;

// True for the PCI classes "3D controller" and "other display controller". VGA controllers and processing accelerators
// count only if NVIDIA or AMD made them, because the console of a server is a VGA controller, too, and because other
// processing accelerators need not be GPUs.
constexpr bool is_gpu_class(const PciInfo& pci) {
  const std::uint32_t kind = pci.device_class >> 8U;
  const bool vendor = pci.vendor == kPciVendorNvidia || pci.vendor == kPciVendorAmd;
  return kind == 0x0302 || kind == 0x0380 || ((kind == 0x0300 || kind == 0x1200) && vendor);
}

constexpr bool is_nic_class(const PciInfo& pci) { return (pci.device_class >> 16U) == 0x02; }

}  // namespace tutti
