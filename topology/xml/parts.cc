// read_parts(): reads the parts of a machine and the links of its PCI tree from the elements of a topology file.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "topology/pci_classes.h"
#include "topology/speeds.h"
#include "topology/xml/draft.h"

namespace tutti {
namespace {

// Limits for the values of attributes. A value above its limit is invalid. kMostNumber is the limit for the numbers of
// GPUs, NICs and ports, and for the family and model of a CPU.
constexpr std::int64_t kMostNumber = 65'535;
constexpr std::int64_t kMostRank = 1 << 24;
constexpr std::int64_t kMostCapability = 9'999;
constexpr std::int64_t kMostNuma = 4'095;
constexpr std::int64_t kMostLanes = 64;
constexpr double kMostMegabits = 1e8;  // 100 Tbit/s
constexpr double kMostGbytes = 1e6;
constexpr std::uint32_t kMostClass = 0xFFFFFF;
constexpr std::uint32_t kMostId = 0xFFFF;

// The assumptions that are made if the value of an attribute is invalid: the argument `assumed` of functions of
// XmlDraft.
constexpr std::string_view kNoFamily = "the family of the CPU is not known";
constexpr std::string_view kNoModel = "the model of the CPU is not known";
constexpr std::string_view kNoId = "the maker and model of the device are not known";
constexpr std::string_view kDefaultWidth = "it has 16 lanes";  // the default of speeds.h
constexpr std::string_view kNoCapability = "the compute capability is not known, and an NVLink carries 20 GB/s";
constexpr std::string_view kNoDirect = "the file does not say whether NICs and GPUs reach each other's memory";
static_assert(kPciDefaultLanes == 16 && nvlink_gbytes_per_s(0) == 20);

class Parts {
 public:
  explicit Parts(XmlDraft& draft) : draft_(draft) {}

  void read() {
    const auto cpus = draft_.children_named(0, "cpu");
    if (cpus.empty()) {
      draft_.report(Severity::kError, draft_.elements.front(), "<system> without a <cpu>", "a machine has a CPU");
    }
    for (const std::uint32_t cpu : cpus) read_cpu(cpu);
    // number() also names the GPUs without tutti_name after their numbers. Then, if two nodes have the same name,
    // make_unique() gives the later one a different name.
    number(NodeKind::kGpu);
    number(NodeKind::kNic);
    for (GraphNode& node : draft_.graph.nodes) make_unique(node);
  }

 private:
  std::uint32_t add(NodeKind kind, std::uint32_t element, std::uint32_t above, const std::string& name) {
    GraphNode node;
    node.kind = kind;
    const std::string* stated = draft_.elements[element].find("tutti_name");
    node.name = stated != nullptr ? *stated : name;
    draft_.graph.nodes.push_back(std::move(node));
    draft_.element_of.push_back(element);
    draft_.parent_of.push_back(above);
    return static_cast<std::uint32_t>(draft_.graph.nodes.size() - 1);
  }

  void link(std::uint32_t node, double gbytes_per_s) {
    const XmlElement& element = draft_.element_of_node(node);
    const double stated = draft_.real(element, "tutti_gbytes_per_s", kMostGbytes, 0);
    draft_.graph.links.push_back({draft_.parent_of[node], node, LinkKind::kPci, 1, stated > 0 ? stated : gbytes_per_s});
  }

  GraphNode& at(std::uint32_t node) { return draft_.graph.nodes[node]; }

  void read_cpu(std::uint32_t index) {
    const XmlElement& element = draft_.elements[index];
    const auto numa = static_cast<std::int32_t>(draft_.integer(element, "numaid", -1, kMostNuma, -1));
    const std::uint32_t node = add(NodeKind::kCpu, index, XmlDraft::kNoNode, fmt::format("cpu{}", std::max(numa, 0)));
    at(node).numa = numa;
    CpuInfo& cpu = at(node).cpu;
    cpu.affinity = draft_.text(element, "affinity");
    cpu.arch = draft_.text(element, "arch");
    cpu.vendor = draft_.text(element, "vendor");
    cpu.family = static_cast<std::int32_t>(draft_.integer(element, "familyid", 0, kMostNumber, 0, kNoFamily));
    cpu.model = static_cast<std::int32_t>(draft_.integer(element, "modelid", 0, kMostNumber, 0, kNoModel));
    read_beneath(index, node);
  }

  void read_beneath(std::uint32_t element, std::uint32_t above) {
    for (const std::uint32_t child : draft_.children[element]) {
      if (draft_.elements[child].name == "pci") read_pci(child, above);
      if (draft_.elements[child].name == "nic") {
        for (const std::uint32_t net : draft_.children_named(child, "net")) read_port(net, above);
      }
    }
  }

  PciInfo pci_of(const XmlElement& element) {
    PciInfo pci;
    pci.bus_id = draft_.bus_id(element, "busid").value_or("");
    pci.device_class = draft_.hexadecimal(element, "class", kMostClass);
    pci.vendor = draft_.hexadecimal(element, "vendor", kMostId, kNoId);
    pci.device = draft_.hexadecimal(element, "device", kMostId, kNoId);
    pci.subsystem_vendor = draft_.hexadecimal(element, "subsystem_vendor", kMostId, kNoId);
    pci.subsystem_device = draft_.hexadecimal(element, "subsystem_device", kMostId, kNoId);
    pci.gigatransfers_per_s = draft_.link_speed(element);
    pci.width = static_cast<std::uint32_t>(draft_.integer(element, "link_width", 0, kMostLanes, 0, kDefaultWidth));
    return pci;
  }

  // Reads a <pci> element and everything beneath it. The depth of the recursion is at most kMaxXmlDepth, because
  // read_elements() refuses deeper files.
  void read_pci(std::uint32_t index, std::uint32_t above) {
    const XmlElement& element = draft_.elements[index];
    const PciInfo pci = pci_of(element);
    const auto gpus = draft_.children_named(index, "gpu");
    const auto nics = draft_.children_named(index, "nic");
    const bool bridge = !draft_.children_named(index, "pci").empty();
    std::vector<std::uint32_t> nets;
    for (const std::uint32_t nic : nics) {
      const auto of_nic = draft_.children_named(nic, "net");
      nets.insert(nets.end(), of_nic.begin(), of_nic.end());
    }
    NodeKind kind = NodeKind::kPci;
    if (!gpus.empty() || (!bridge && nics.empty() && is_gpu_class(pci))) {
      kind = NodeKind::kGpu;
    } else if (!bridge && nets.size() <= 1 && (nets.size() == 1 || !nics.empty() || is_nic_class(pci))) {
      kind = NodeKind::kNic;
    }
    const std::uint32_t from = nets.size() == 1 && kind == NodeKind::kNic ? nets.front() : index;
    const std::uint32_t node = add(kind, from, above, fmt::format("{} {}", to_string(kind), pci.bus_id));
    at(node).pci = pci;
    index_by_bus_id(node, element, pci);
    link(node, pci_gbytes_per_s(pci));
    const auto stray = draft_.children_named(index, "pcilink");
    if (kind != NodeKind::kPci && !stray.empty()) {
      draft_.report(Severity::kWarning, draft_.elements[stray.front()], "<pcilink> at a device",
                    "it is ignored; it joins two PCI switches");
    }
    if (kind == NodeKind::kGpu) return read_gpu(index, gpus, node, bridge || !nics.empty());
    if (kind == NodeKind::kNic)
      return nets.empty() ? void(class_only_nodes_.insert(node)) : read_net(nets.front(), node);
    if (!bridge && nets.empty() && pci.device_class == 0 && !pci.bus_id.empty()) {
      draft_.report(Severity::kWarning, element, fmt::format("PCI device {} without a class", pci.bus_id),
                    "its type is not known; add class=\"0x030200\" to a GPU, class=\"0x020000\" to a NIC");
    }
    read_beneath(index, node);
  }

  void index_by_bus_id(std::uint32_t node, const XmlElement& element, const PciInfo& pci) {
    if (pci.bus_id.empty()) return;
    const auto [first, fresh] = draft_.by_bus_id.emplace(pci.bus_id, node);
    if (fresh) return;
    draft_.report(Severity::kError, element,
                  fmt::format("bus id {} appears twice, first in line {}", pci.bus_id,
                              draft_.element_of_node(first->second).line),
                  "give each device its own");
  }

  void read_gpu(std::uint32_t index, const std::vector<std::uint32_t>& elements, std::uint32_t node, bool has_more) {
    const XmlElement& device_element = draft_.elements[index];
    if (has_more) {
      draft_.report(Severity::kError, device_element, "a GPU with other devices beneath it",
                    "move them to the switch above it");
    }
    if (elements.empty()) {
      class_only_nodes_.insert(node);
      return;
    }
    if (elements.size() > 1) {
      draft_.report(Severity::kWarning, draft_.elements[elements[1]], "a second <gpu> of one PCI device",
                    "it is ignored; the first one counts");
    }
    if (const PciInfo& pci = at(node).pci;
        pci.device_class != 0 && !is_gpu_class(pci) && pci.device_class >> 16U != 3) {
      draft_.report(Severity::kWarning, device_element,
                    fmt::format("a GPU of the PCI class 0x{:06x}", pci.device_class),
                    "it is taken as a GPU; a GPU's class is 0x030200, AMD's 0x038000");
    }
    draft_.element_of[node] = elements.front();
    const XmlElement& element = draft_.elements[elements.front()];
    GpuInfo& gpu = at(node).gpu;
    gpu.device = static_cast<std::int32_t>(draft_.integer(element, "dev", -1, kMostNumber, -1));
    gpu.rank = static_cast<std::int32_t>(draft_.integer(element, "rank", -1, kMostRank, -1));
    gpu.capability = static_cast<std::int32_t>(draft_.integer(element, "sm", 0, kMostCapability, 0, kNoCapability));
    gpu.direct = draft_.flag(element, "gdr", kNoDirect);
    gpu.gcn = draft_.text(element, "gcn");
    gpu.arch = draft_.text(element, "arch");
  }

  // Reads a <net> element that becomes a node of its own: a port of a card with several ports, or a port without a PCI
  // device of its own. (If a card has one port, read_pci() makes one node for card and port.)
  void read_port(std::uint32_t index, std::uint32_t above) {
    const XmlElement& element = draft_.elements[index];
    const std::uint32_t node = add(NodeKind::kNic, index, above, draft_.text(element, "name"));
    read_net(index, node);
    const double speed = at(node).nic.megabits_per_s / 8'000;
    const GraphNode& card = at(above);
    link(node, card.kind == NodeKind::kPci || speed == 0 ? pci_gbytes_per_s(card.pci) : speed);
  }

  void read_net(std::uint32_t index, std::uint32_t node) {
    const XmlElement& element = draft_.elements[index];
    if (element.find("tutti_name") == nullptr) at(node).name = draft_.text(element, "name");
    NicInfo& nic = at(node).nic;
    nic.device = static_cast<std::int32_t>(draft_.integer(element, "dev", -1, kMostNumber, -1, "it has no number"));
    nic.guid = draft_.text(element, "guid");
    nic.megabits_per_s = draft_.real(element, "speed", kMostMegabits, 0);
    nic.port = static_cast<std::int32_t>(draft_.integer(element, "port", 0, kMostNumber, 1, "it is port 1"));
    nic.latency_us = draft_.real(element, "latency", 1e9, 0, "the latency is not known");
    nic.max_connections = draft_.integer(element, "maxconn", 0, std::int64_t{1} << 40U, 0, "there is no limit");
    nic.direct = draft_.flag(element, "gdr", kNoDirect);
    nic.collective = draft_.flag(element, "coll", "its network does not reduce").value_or(false);
    const std::string* speed = element.find("speed");
    if (speed == nullptr) {
      draft_.report(Severity::kNote, element, fmt::format("the speed of NIC {} is missing", at(node).name),
                    "add speed, in Mbit/s");
    } else if (nic.megabits_per_s == 0) {
      draft_.report(Severity::kWarning, element, fmt::format("NIC {} is dead: its speed is {}", at(node).name, *speed),
                    "connect it, or take it out of the file");
    }
  }

  // Gives numbers to the GPUs or NICs without a number in the file, in the order of their bus ids, beginning after the
  // highest number of this kind in the file. Then names the GPUs that have no tutti_name: "gpu0", "gpu1", ...
  void number(NodeKind kind) {
    std::int32_t next = 0;
    std::vector<std::uint32_t> without;
    for (std::uint32_t i = 0; i < draft_.graph.nodes.size(); ++i) {
      if (at(i).kind != kind) continue;
      const std::int32_t device = number_of(at(i));
      next = std::max(next, device + 1);
      if (device < 0) without.push_back(i);
    }
    std::stable_sort(without.begin(), without.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return at(a).pci.bus_id < at(b).pci.bus_id; });
    for (const std::uint32_t node : without) number_of(at(node)) = next++;
    report_class_only_nodes(kind);
    if (kind != NodeKind::kGpu) return;
    for (std::uint32_t i = 0; i < draft_.graph.nodes.size(); ++i) {
      const bool named = at(i).kind == kind && pci_element(i).find("tutti_name") != nullptr;
      if (at(i).kind == kind && !named) at(i).name = fmt::format("gpu{}", at(i).gpu.device);
    }
  }

  const XmlElement& pci_element(std::uint32_t node) const {
    const XmlElement& element = draft_.element_of_node(node);
    return element.name == "gpu" ? draft_.elements[static_cast<std::size_t>(element.parent)] : element;
  }

  static std::int32_t& number_of(GraphNode& node) {
    return node.kind == NodeKind::kGpu ? node.gpu.device : node.nic.device;
  }

  void report_class_only_nodes(NodeKind kind) {
    std::size_t count = 0;
    std::uint32_t first = XmlDraft::kNoNode;
    for (const std::uint32_t node : class_only_nodes_) {
      if (at(node).kind != kind) continue;
      ++count;
      first = std::min(first, node);
    }
    if (count == 0) return;
    const bool gpus = kind == NodeKind::kGpu;
    draft_.report(Severity::kNote, draft_.element_of_node(first),
                  fmt::format("{} {} described by their PCI class only", count, gpus ? "GPUs are" : "NICs are"),
                  gpus ? "numbered by bus id; their NVLinks are not in the file, NCCL finds them on the machine"
                       : "numbered by bus id; their speeds are not in the file, NCCL finds them on the machine");
  }

  void make_unique(GraphNode& node) {
    if (node.name.empty()) node.name = to_string(node.kind);
    const std::string wanted = node.name;
    for (std::uint32_t copy = 2; !names_.insert(node.name).second; ++copy) {
      // The search for a free suffix continues behind the last suffix that was given to the same name, so that many
      // equal names do not take quadratic time. A name of the file that looks like name and suffix costs one more step.
      copy = std::max(copy, copies_[wanted]);
      copies_[wanted] = copy + 1;
      node.name = fmt::format("{}#{}", wanted, copy);
    }
  }

  XmlDraft& draft_;
  std::set<std::uint32_t> class_only_nodes_;  // GPUs without a <gpu> element, and NICs without a <net> element
  std::set<std::string> names_;
  std::map<std::string, std::uint32_t> copies_;
};

}  // namespace

void read_parts(XmlDraft& draft) { Parts(draft).read(); }

}  // namespace tutti
