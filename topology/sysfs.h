// Reads PCI devices and NICs from the kernel's sysfs, below a folder that tests can replace. Never fails: data that
// cannot be read is missing in the result. May be called by any thread.
//
// PCI devices are read from sysfs and not through hwloc, because files in NCCL's format need data that only sysfs
// provides without root privileges: the transfers per second and the lanes at both ends of a PCI link.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/graph.h"

namespace tutti {

struct SysfsPci {
  // The speed and the width of the link are the largest that both ends support, or, if those of the other end are not
  // known, the largest that the device supports.
  PciInfo pci{};
  std::vector<std::string> above{};  // bus ids of the PCI switches between device and CPU, the nearest first
  std::int32_t numa = -1;            // number of the device's NUMA node; -1: unknown
  std::string local_cpus{};          // mask of the CPUs that are near the device; empty: unknown

  bool operator==(const SysfsPci&) const = default;
};

// Returns all PCI devices, sorted by bus id, but at most kMaxPciDevices. A PCI switch appears in sysfs as several
// bridges: an upper port and lower ports. SysfsPci::above contains only the upper port.
inline constexpr std::size_t kMaxPciDevices = 65'536;
std::vector<SysfsPci> read_pci_devices(const std::string& root);

struct SysfsNic {
  std::string name{};    // for example "mlx5_0" or "eth0"
  std::string bus_id{};  // empty: not a PCI device
  NicInfo nic{};         // nic.device is not set; nic.megabits_per_s is 0 if the speed is unknown
  bool up = false;       // true: the port is active; for a network interface also if the kernel does not know its state
  bool ethernet = false;  // true: a network interface; false: a port of an RDMA device

  bool operator==(const SysfsNic&) const = default;
};

// Returns the ports of RDMA devices, sorted by the name of the device, and then the network interfaces of other
// devices, sorted by name. Interfaces without a device, such as the loopback interface or a bridge, are left out.
std::vector<SysfsNic> read_nics(const std::string& root);

}  // namespace tutti
