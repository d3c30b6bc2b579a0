#include "topology/discover.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "topology/pci_classes.h"
#include "topology/speeds.h"
#include "topology/sysfs.h"
#include "topology/xml/values.h"

namespace tutti {
namespace {

constexpr double kUnknownMegabits = 10'000;  // speed that is assumed for a NIC with an unknown speed, as in NCCL
constexpr std::uint32_t kNoNode = ~0U;

// Builds the graph part by part; discover() runs it once.
class Discoverer {
 public:
  Discoverer(const DiscoverOptions& options, const GpuTopology& gpus, Discovery& found)
      : gpus_(gpus), found_(found), graph_(found.graph), nics_(read_nics(options.root)) {
    for (SysfsPci& device : read_pci_devices(options.root)) devices_.emplace(device.pci.bus_id, std::move(device));
  }

  void run() {
    add_cpus();
    if (gpus_.no_driver.empty()) {
      for (std::size_t i = 0; i < gpus_.gpus.size(); ++i) add_gpu(i);
    } else {
      add_gpus_by_class();
    }
    add_nics();
    add_nvlinks();
  }

 private:
  void note(std::string text) { found_.notes.push_back(std::move(text)); }

  void add_cpus() {
    for (const NumaNode& numa : found_.processors.nodes) {
      const std::uint32_t node = add_node(graph_, NodeKind::kCpu, fmt::format("cpu{}", numa.number));
      graph_.nodes[node].numa = numa.number;
      graph_.nodes[node].cpu = numa.cpu;
      for (std::uint32_t other = 0; other < node; ++other) {
        const CpuInfo& cpu = graph_.nodes[other].cpu;
        add_link(graph_, other, node, LinkKind::kCpu, 1,
                 std::min(cpu_link_gbytes_per_s(cpu), cpu_link_gbytes_per_s(numa.cpu)));
      }
    }
  }

  // Returns the node of the graph that represents the NUMA node of a device, or the first NUMA node if sysfs does not
  // determine it. The NUMA nodes are the first nodes of the graph, in the order of found_.processors.nodes.
  std::uint32_t cpu_of(const SysfsPci& device) {
    const auto& nodes = found_.processors.nodes;
    for (std::uint32_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].number == device.numa) return i;
    }
    for (std::uint32_t i = 0; i < nodes.size() && is_mask(device.local_cpus); ++i) {
      if (nodes.size() > 1 && !covers_all(device.local_cpus) &&
          masks_overlap(nodes[i].cpu.affinity, device.local_cpus)) {
        return i;
      }
    }
    if (nodes.size() > 1) {
      note(fmt::format("the NUMA node of {} is unknown: node {} is assumed", device.pci.bus_id, nodes[0].number));
    }
    return 0;
  }

  // True if the CPU mask overlaps with every NUMA node. Such a mask does not show the NUMA node of a device.
  bool covers_all(const std::string& mask) const {
    const auto& nodes = found_.processors.nodes;
    return std::all_of(nodes.begin(), nodes.end(),
                       [&](const NumaNode& node) { return masks_overlap(node.cpu.affinity, mask); });
  }

  // Returns the node that a device is connected to: the PCI switch above it, or a NUMA node if there is no switch. Adds
  // those switches between CPU and device to the graph that are not in it yet.
  std::uint32_t above(const SysfsPci& device) {
    std::uint32_t at = cpu_of(device);
    for (std::size_t i = device.above.size(); i-- > 0;) {
      const auto known = switches_.find(device.above[i]);
      if (known != switches_.end()) {
        at = known->second;
        continue;
      }
      const auto bridge = devices_.find(device.above[i]);
      PciInfo pci;
      pci.bus_id = device.above[i];
      if (bridge != devices_.end()) pci = bridge->second.pci;
      at = add_pci_node(NodeKind::kPci, "pci " + pci.bus_id, pci, at);
      switches_.emplace(pci.bus_id, at);
    }
    return at;
  }

  std::uint32_t add_pci_node(NodeKind kind, std::string name, const PciInfo& pci, std::uint32_t at) {
    const std::uint32_t node = add_node(graph_, kind, std::move(name));
    graph_.nodes[node].pci = pci;
    add_link(graph_, at, node, LinkKind::kPci, 1, pci_gbytes_per_s(pci));
    return node;
  }

  void add_gpu(std::size_t number) {
    const Gpu& gpu = gpus_.gpus[number];
    const auto same = [&](const Gpu& other) { return other.pci_id == gpu.pci_id; };
    const auto first = std::find_if(gpus_.gpus.begin(), gpus_.gpus.end(), same) - gpus_.gpus.begin();
    if (static_cast<std::size_t>(first) != number) {
      note(fmt::format("GPU {} is a MIG slice of GPU {}: both are one GPU in the graph", number, first));
      gpu_nodes_.push_back(gpu_nodes_[static_cast<std::size_t>(first)]);
      return;
    }
    const auto device = devices_.find(gpu.pci_id);
    SysfsPci unknown;
    unknown.pci.bus_id = gpu.pci_id;
    unknown.pci.device_class = 0x030200;
    if (device == devices_.end()) note(fmt::format("GPU {} ({}) is not in sysfs", number, gpu.pci_id));
    const SysfsPci& pci_device = device == devices_.end() ? unknown : device->second;
    const std::uint32_t node =
        add_pci_node(NodeKind::kGpu, fmt::format("gpu{}", number), pci_device.pci, above(pci_device));
    graph_.nodes[node].gpu.device = static_cast<std::int32_t>(number);
    graph_.nodes[node].gpu.capability = gpu.capability_major * 10 + gpu.capability_minor;
    gpu_nodes_.push_back(node);
  }

  void add_gpus_by_class() {
    std::int32_t number = 0;
    for (const auto& [id, device] : devices_) {
      if (!is_gpu_class(device.pci)) continue;
      const std::uint32_t node = add_pci_node(NodeKind::kGpu, fmt::format("gpu{}", number), device.pci, above(device));
      graph_.nodes[node].gpu.device = number++;
    }
    if (number > 0) note(fmt::format("{} GPUs are known by their PCI class only: {}", number, gpus_.no_driver));
  }

  void add_nics() {
    std::map<std::string, std::size_t> ports;  // number of ports that are up, for each bus id
    for (const SysfsNic& nic : nics_) ports[nic.bus_id] += nic.up ? 1 : 0;
    std::map<std::string, std::uint32_t> cards;
    std::int32_t number = 0;
    for (const SysfsNic& nic : nics_) {
      if (!nic.up) {
        note(fmt::format("NIC {} is down: it is left out", nic.name));
        continue;
      }
      const auto device = devices_.find(nic.bus_id);
      NicInfo info = nic.nic;
      info.device = number++;
      if (info.megabits_per_s == 0) {
        note(fmt::format("the speed of NIC {} is unknown: {} Gbit/s are assumed", nic.name, kUnknownMegabits / 1'000));
        info.megabits_per_s = kUnknownMegabits;
      }
      const std::uint32_t node = device == devices_.end() ? add_port(nic, 0, info.megabits_per_s / 8'000)
                                                          : add_card(nic, device->second, ports[nic.bus_id] > 1, cards);
      graph_.nodes[node].nic = info;
    }
  }

  std::uint32_t add_port(const SysfsNic& nic, std::uint32_t at, double gbytes_per_s) {
    const std::uint32_t node = add_node(graph_, NodeKind::kNic, nic.name);
    add_link(graph_, at, node, LinkKind::kPci, 1, gbytes_per_s);
    return node;
  }

  // Adds a port of a PCI card to the graph. If `shared` is false, the port is the only one of the card that is up, and
  // one node represents card and port. Otherwise the card becomes a node of its own above its ports, because the ports
  // share the link of the card.
  std::uint32_t add_card(const SysfsNic& nic, const SysfsPci& device, bool shared,
                         std::map<std::string, std::uint32_t>& cards) {
    if (!shared) return add_pci_node(NodeKind::kNic, nic.name, device.pci, above(device));
    auto card = cards.find(nic.bus_id);
    if (card == cards.end()) {
      card =
          cards.emplace(nic.bus_id, add_pci_node(NodeKind::kPci, "pci " + nic.bus_id, device.pci, above(device))).first;
    }
    return add_port(nic, card->second, pci_gbytes_per_s(device.pci));
  }

  void add_nvlinks() {
    if (!gpus_.no_nvml.empty()) note("NVLink is unknown: " + gpus_.no_nvml);
    std::vector<std::uint32_t> to_switch(gpu_nodes_.size(), 0);
    for (std::size_t from = 0; from < gpu_nodes_.size(); ++from) {
      for (std::size_t to = 0; to < gpu_nodes_.size(); ++to) {
        const NvLinks& links = gpus_.path(from, to).nvlinks;
        if (links.count == 0 || gpu_nodes_[from] == gpu_nodes_[to]) continue;
        if (links.by_switch) {
          to_switch[from] = std::max(to_switch[from], links.count);
        } else if (from < to) {
          const double each = std::min(speed_of(from), speed_of(to));
          add_link(graph_, gpu_nodes_[from], gpu_nodes_[to], LinkKind::kNvLink, links.count, links.count * each);
        }
      }
    }
    std::uint32_t node = kNoNode;
    for (std::size_t i = 0; i < gpu_nodes_.size(); ++i) {
      if (to_switch[i] == 0) continue;
      if (node == kNoNode) node = add_node(graph_, NodeKind::kNvSwitch, "nvswitch");
      add_link(graph_, gpu_nodes_[i], node, LinkKind::kNvLink, to_switch[i], to_switch[i] * speed_of(i));
    }
  }

  double speed_of(std::size_t gpu) const { return nvlink_gbytes_per_s(graph_.nodes[gpu_nodes_[gpu]].gpu.capability); }

  const GpuTopology& gpus_;
  Discovery& found_;
  Graph& graph_;
  std::vector<SysfsNic> nics_;
  std::map<std::string, SysfsPci> devices_;
  std::map<std::string, std::uint32_t> switches_;  // the node of each PCI switch, by its bus id
  std::vector<std::uint32_t> gpu_nodes_;           // the node of each GPU that the driver lists, by its number
};

}  // namespace

Result<Discovery> discover(const DiscoverOptions& options, const GpuTopology& gpus) {
  Result<Processors> processors = discover_processors(options.synthetic);
  if (!processors) return processors.error();
  Discovery found;
  found.processors = *std::move(processors);
  found.graph.name = "this machine";
  Discoverer(options, gpus, found).run();
  return found;
}

}  // namespace tutti
