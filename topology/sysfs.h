// Reads PCI devices and NICs from the kernel's sysfs, below a folder that tests can replace. Never fails: data that
// cannot be read is missing in the result. May be called by any thread.
//
// PCI devices are read from sysfs and not through hwloc, because files in NCCL's format need data that only sysfs
// provides without root privileges: transfers per second, and lanes of both ends of a link.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "topology/graph.h"

namespace tutti {

struct SysfsPci {
  PciInfo pci{};                     // link speed and width: those of the slower end
  std::vector<std::string> above{};  // bus ids of the switches above it, the nearest first
  std::int32_t numa = -1;            // -1: unknown
  std::string local_cpus{};          // a CPU mask; empty: unknown

  bool operator==(const SysfsPci&) const = default;
};

// All PCI devices, sorted by bus id, at most kMaxPciDevices. A switch has two ports in sysfs; in `above` it is
// represented by its upper port only.
inline constexpr std::size_t kMaxPciDevices = 65'536;
std::vector<SysfsPci> read_pci_devices(const std::filesystem::path& root);

struct SysfsNic {
  std::string name{};    // for example "mlx5_0" or "eth0"
  std::string bus_id{};  // empty: not a PCI device
  NicInfo nic{};         // without a device number; speed 0: unknown
  bool up = false;
  bool ethernet = false;  // true: a network interface; false: an InfiniBand or RoCE port

  bool operator==(const SysfsNic&) const = default;
};

// The ports of RDMA devices, and the network interfaces of devices that are not RDMA devices, each group sorted by
// name. Interfaces without hardware are left out.
std::vector<SysfsNic> read_nics(const std::filesystem::path& root);

}  // namespace tutti
