#include "topology/sysfs.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/paths.h"
#include "topology/speeds.h"
#include "topology/xml/values.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxNics = 4'096;

std::string line_of(const std::string& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

std::uint32_t hexadecimal_of(const std::string& file) { return parse_hexadecimal(line_of(file)).value_or(0); }

// Returns the bus ids in the resolved path of a device's folder: those of all bridges above the device, the one at the
// CPU first, and then that of the device itself.
std::vector<std::string> chain_of(const std::string& folder) {
  std::vector<std::string> chain;
  const std::string path = resolve_path(folder);
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (auto id = parse_bus_id(path.substr(begin, end - begin))) chain.push_back(*std::move(id));
    begin = end + 1;
  }
  return chain;
}

// Reads the maximum link speed (GT/s) and width (lanes) of a PCI port. A value is 0 if the kernel does not report a
// valid one.
void read_link(const std::string& folder, double& speed, std::uint32_t& width) {
  speed = std::max(parse_link_speed(line_of(join_path(folder, "max_link_speed"))).value_or(0), 0.0);
  constexpr std::int64_t kMostLanes = 64;  // the kernel reports 255 if the width is unknown
  const std::int64_t lanes = parse_integer(line_of(join_path(folder, "max_link_width"))).value_or(0);
  width = lanes > 0 && lanes <= kMostLanes ? static_cast<std::uint32_t>(lanes) : 0;
}

SysfsPci read_device(const std::string& devices, const std::string& id) {
  const std::string folder = join_path(devices, id);
  SysfsPci device;
  device.pci.bus_id = parse_bus_id(id).value_or(id);
  device.pci.device_class = hexadecimal_of(join_path(folder, "class"));
  device.pci.vendor = hexadecimal_of(join_path(folder, "vendor"));
  device.pci.device = hexadecimal_of(join_path(folder, "device"));
  device.pci.subsystem_vendor = hexadecimal_of(join_path(folder, "subsystem_vendor"));
  device.pci.subsystem_device = hexadecimal_of(join_path(folder, "subsystem_device"));
  device.numa = static_cast<std::int32_t>(parse_integer(line_of(join_path(folder, "numa_node"))).value_or(-1));
  device.local_cpus = line_of(join_path(folder, "local_cpus"));
  read_link(folder, device.pci.gigatransfers_per_s, device.pci.width);
  const std::vector<std::string> chain = chain_of(folder);
  if (chain.size() > 1) {
    double speed = 0;
    std::uint32_t width = 0;
    read_link(join_path(devices, chain[chain.size() - 2]), speed, width);
    PciInfo& own = device.pci;
    if (speed > 0 && own.gigatransfers_per_s > 0) own.gigatransfers_per_s = std::min(own.gigatransfers_per_s, speed);
    if (width > 0 && own.width > 0) own.width = std::min(own.width, width);
  }
  // A switch appears as an upper port and one lower port for each device beneath. So on the path from the device
  // upwards, every second bridge is the upper port of a switch. The outermost bridge is a port of the CPU and not of a
  // switch. (If another bridge makes the number of bridges even, the port of the CPU is taken as a switch, too.)
  for (std::size_t i = chain.size(); i >= 3; i -= 2) device.above.push_back(chain[i - 3]);
  return device;
}

// Returns the rate of an RDMA port in Mbit/s from a text such as "200 Gb/sec (4X HDR)"; 0 if the text is invalid.
double megabits_of_rate(const std::string& rate) {
  const auto gigabits = parse_real(rate.substr(0, rate.find(' ')));
  return gigabits && *gigabits > 0 && *gigabits < 1e6 ? *gigabits * 1'000 : 0;
}

// Reads a GUID such as "9803:9b03:00ae:6d94" and returns it in the form that NCCL writes: "0x98039b0300ae6d94".
std::string guid_of(const std::string& file) {
  std::string text = line_of(file);
  std::erase(text, ':');
  const std::size_t first = text.find_first_not_of('0');
  return "0x" + (first == std::string::npos ? "0" : text.substr(first));
}

std::string device_of(const std::string& folder) {
  const std::vector<std::string> chain = chain_of(folder);
  return chain.empty() ? std::string() : chain.back();
}

void read_rdma(const std::string& root, std::vector<SysfsNic>& nics) {
  const std::string folder = join_path(root, "sys/class/infiniband");
  for (const std::string& name : names_in_folder(folder, kMaxNics)) {
    const std::string adapter = join_path(folder, name);
    const std::vector<std::string> ports = names_in_folder(join_path(adapter, "ports"), kMaxNics);
    for (const std::string& port : ports) {
      const std::string at = join_path(adapter, "ports/" + port);
      SysfsNic nic;
      nic.name = ports.size() == 1 ? name : name + ":" + port;
      nic.bus_id = device_of(join_path(adapter, "device"));
      nic.nic.port = static_cast<std::int32_t>(parse_integer(port).value_or(1));
      nic.nic.guid = guid_of(join_path(adapter, "node_guid"));
      nic.nic.megabits_per_s = megabits_of_rate(line_of(join_path(at, "rate")));
      nic.up = line_of(join_path(at, "state")).find("ACTIVE") != std::string::npos;
      nics.push_back(std::move(nic));
    }
  }
}

void read_interfaces(const std::string& root, std::vector<SysfsNic>& nics) {
  std::set<std::string> rdma;
  for (const SysfsNic& nic : nics) rdma.insert(nic.bus_id);
  const std::string folder = join_path(root, "sys/class/net");
  for (const std::string& name : names_in_folder(folder, kMaxNics)) {
    const std::string interface = join_path(folder, name);
    if (!file_exists(join_path(interface, "device"))) continue;
    SysfsNic nic;
    nic.name = name;
    nic.ethernet = true;
    nic.bus_id = device_of(join_path(interface, "device"));
    if (!nic.bus_id.empty() && rdma.contains(nic.bus_id)) continue;
    nic.nic.port = 0;
    nic.nic.guid = "0x0";
    const double speed = parse_real(line_of(join_path(interface, "speed"))).value_or(0);
    nic.nic.megabits_per_s = speed > 0 && speed < 1e9 ? speed : 0;
    const std::string state = line_of(join_path(interface, "operstate"));
    nic.up = state == "up" || state == "unknown";
    nics.push_back(std::move(nic));
  }
}

}  // namespace

std::vector<SysfsPci> read_pci_devices(const std::string& root) {
  const std::string folder = join_path(root, "sys/bus/pci/devices");
  std::vector<SysfsPci> devices;
  for (const std::string& id : names_in_folder(folder, kMaxPciDevices)) {
    if (parse_bus_id(id)) devices.push_back(read_device(folder, id));
  }
  return devices;
}

std::vector<SysfsNic> read_nics(const std::string& root) {
  std::vector<SysfsNic> nics;
  read_rdma(root, nics);
  read_interfaces(root, nics);
  return nics;
}

}  // namespace tutti
