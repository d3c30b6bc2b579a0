// PCI devices and NICs as the kernel's sysfs tells them: pure reading below a folder, which tests make up. Never fails:
// what cannot be read is not there. Any thread.
//
// PCI is read here and not by hwloc, as NCCL's files want what only sysfs says without root: transfers per second and
// lanes of both ends of a link.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "topology/graph.h"

namespace tutti {

struct SysfsPci {
  PciInfo pci{};                     // link speed and width: of the slower end
  std::vector<std::string> above{};  // bus ids of the switches above it, the nearest first
  std::int32_t numa = -1;            // -1: not told
  std::string local_cpus{};          // a mask; empty: not told

  bool operator==(const SysfsPci&) const = default;
};

// Of every device, by bus id; of a switch its two ports are one, its upper one. At most kMaxPciDevices.
inline constexpr std::size_t kMaxPciDevices = 65'536;
std::vector<SysfsPci> read_pci_devices(const std::filesystem::path& root);

struct SysfsNic {
  std::string name{};    // "mlx5_0", "eth0"
  std::string bus_id{};  // empty: no PCI device
  NicInfo nic{};         // without a number; speed 0: not told
  bool up = false;
  bool ethernet = false;  // a network interface; else an InfiniBand or RoCE port

  bool operator==(const SysfsNic&) const = default;
};

// Ports of RDMA devices, and network interfaces of devices that are no such ones; not those without hardware. By name.
std::vector<SysfsNic> read_nics(const std::filesystem::path& root);

}  // namespace tutti
