// Reads the links of a machine other than those of the PCI tree.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "topology/speeds.h"
#include "topology/xml/draft.h"
#include "topology/xml/values.h"

namespace tutti {
namespace {

constexpr std::int64_t kMostLinks = 1'024;  // largest valid value of the attribute count (parallel links)
constexpr double kMostGbytes = 1e6;
// The value of the attribute tclass (the PCI class of the other end of an NVLink) for an NVSwitch, without the last
// byte.
constexpr std::uint32_t kBridgeKind = 0x0680;
// the value of tclass for a POWER CPU
constexpr std::uint32_t kCpuClass = 0x068001;

// The link between two parts, as the elements of both parts describe it. Index 0 is the part with the lower node
// number.
struct LinkReport {
  std::uint32_t count[2] = {0, 0};    // number of parallel links; 0: this part does not describe the link
  std::uint32_t element[2] = {0, 0};  // index of the last element that describes the link
  double gbytes_per_s = 0;            // the largest that an element states; 0: the default for the kind of link
};

class Links {
 public:
  explicit Links(XmlDraft& draft) : draft_(draft) {}

  void read() {
    const auto parts = static_cast<std::uint32_t>(draft_.graph.nodes.size());
    for (std::uint32_t node = 0; node < parts; ++node) {
      const XmlElement& element = draft_.element_of_node(node);
      const auto index = static_cast<std::uint32_t>(&element - draft_.elements.data());
      if (element.name == "gpu") read_gpu(index, node);
      for (const std::uint32_t link : draft_.children_named(index, "pcilink")) read_pcilink(link, node);
    }
    for (const auto& [ends, reported] : reports_)
      add(std::get<0>(ends), std::get<1>(ends), std::get<2>(ends), reported);
    read_cpu_links();
  }

 private:
  using Ends = std::tuple<LinkKind, std::uint32_t, std::uint32_t>;  // the two nodes, the lower number first

  GraphNode& at(std::uint32_t node) { return draft_.graph.nodes[node]; }

  void read_gpu(std::uint32_t gpu, std::uint32_t node) {
    for (const std::uint32_t link : draft_.children_named(gpu, "nvlink")) read_nvlink(link, node, LinkKind::kNvLink);
    for (const std::uint32_t link : draft_.children_named(gpu, "xgmi")) read_nvlink(link, node, LinkKind::kXgmi);
    for (const std::uint32_t link : draft_.children_named(gpu, "c2c")) read_c2c(link, node);
  }

  // Returns the node to which the link `element` leads: the GPU of the file that the attribute `target` names, or the
  // NVSwitch if `device_class` is that of NVSwitches; the first such link adds its node. Returns kNoNode if the target
  // is neither.
  std::uint32_t target_of(const XmlElement& element, std::uint32_t device_class) {
    const std::string target = draft_.text(element, "target");
    const auto id = parse_bus_id(target);
    const auto found = draft_.by_bus_id.find(id.value_or(target));
    const bool gpu = found != draft_.by_bus_id.end() && at(found->second).kind == NodeKind::kGpu;
    if (gpu) return found->second;
    if (device_class >> 8U == kBridgeKind) {
      if (switch_ == XmlDraft::kNoNode) switch_ = make_switch(element);
      return switch_;
    }
    return XmlDraft::kNoNode;
  }

  std::uint32_t make_switch(const XmlElement& element) {
    GraphNode node;
    node.kind = NodeKind::kNvSwitch;
    node.name = "nvswitch";
    for (std::uint32_t copy = 2; has_name(node.name); ++copy) node.name = fmt::format("nvswitch#{}", copy);
    draft_.graph.nodes.push_back(std::move(node));
    draft_.element_of.push_back(static_cast<std::uint32_t>(&element - draft_.elements.data()));
    draft_.parent_of.push_back(XmlDraft::kNoNode);
    return static_cast<std::uint32_t>(draft_.graph.nodes.size() - 1);
  }

  bool has_name(const std::string& name) const {
    return std::any_of(draft_.graph.nodes.begin(), draft_.graph.nodes.end(),
                       [&](const GraphNode& node) { return node.name == name; });
  }

  void read_nvlink(std::uint32_t index, std::uint32_t node, LinkKind kind) {
    const XmlElement& element = draft_.elements[index];
    const auto count = static_cast<std::uint32_t>(draft_.integer(element, "count", 0, kMostLinks, 0));
    const std::uint32_t device_class = draft_.hexadecimal(element, "tclass", 0xFFFFFF);
    const double gbytes = draft_.real(element, "tutti_gbytes_per_s", kMostGbytes, 0);
    if (element.find("target") == nullptr || count == 0) {
      if (element.find("count") != nullptr && element.find("target") != nullptr) {
        draft_.report(Severity::kWarning, element, fmt::format("<{}> with count 0", element.name), "it is ignored");
      }
      return;
    }
    const std::uint32_t to = device_class == kCpuClass ? draft_.cpu_above(node) : target_of(element, device_class);
    if (to == XmlDraft::kNoNode) {
      draft_.report(Severity::kWarning, element,
                    fmt::format("<{}> of {} leads to {}, which is not a GPU of this file", element.name, at(node).name,
                                draft_.text(element, "target")),
                    "it is ignored; correct the target, or give tclass=\"0x068000\" to a switch");
    } else if (to == node) {
      draft_.report(Severity::kWarning, element, fmt::format("<{}> of {} leads to itself", element.name, at(node).name),
                    "it is ignored; the target is the bus id of the other end");
    } else {
      record(kind, node, to, index, count, gbytes);
    }
  }

  void record(LinkKind kind, std::uint32_t node, std::uint32_t to, std::uint32_t element, std::uint32_t count,
              double gbytes) {
    const std::size_t side = node < to ? 0 : 1;
    LinkReport& reported = reports_[{kind, std::min(node, to), std::max(node, to)}];
    reported.count[side] += count;
    reported.element[side] = element;
    reported.gbytes_per_s = std::max(reported.gbytes_per_s, gbytes);
  }

  void read_c2c(std::uint32_t index, std::uint32_t node) {
    const XmlElement& element = draft_.elements[index];
    const auto count = static_cast<std::uint32_t>(draft_.integer(element, "count", 1, kMostLinks, 1));
    const double each = draft_.real(element, "bw", kMostGbytes * 1'000, 0);  // bandwidth of one link, in MB/s
    const double reported = draft_.real(element, "tutti_gbytes_per_s", kMostGbytes, 0);
    const double gbytes = reported > 0 ? reported : each * count / 1'000;
    if (gbytes <= 0) {
      draft_.report(Severity::kWarning, element, fmt::format("<c2c> of {} without bandwidth", at(node).name),
                    "it is ignored; write bw in MB/s");
      return;
    }
    draft_.graph.links.push_back({draft_.cpu_above(node), node, LinkKind::kC2c, count, gbytes});
  }

  void read_pcilink(std::uint32_t index, std::uint32_t node) {
    const XmlElement& element = draft_.elements[index];
    const auto id = draft_.bus_id(element, "target");
    if (!id) return;
    const auto found = draft_.by_bus_id.find(*id);
    const bool usable = found != draft_.by_bus_id.end() && found->second != node &&
                        at(found->second).kind == NodeKind::kPci && at(node).kind == NodeKind::kPci;
    if (!usable) {
      draft_.report(
          Severity::kWarning, element,
          fmt::format("<pcilink> of {} leads to {}, which is not another PCI switch of this file", at(node).name, *id),
          "it is ignored; it joins two PCI switches");
      return;
    }
    const bool in_tree = draft_.parent_of[node] == found->second || draft_.parent_of[found->second] == node;
    if (!in_tree) record(LinkKind::kPci, node, found->second, index, 1, 0);
  }

  double default_gbytes(LinkKind kind, std::uint32_t low, std::uint32_t high, std::uint32_t count) {
    if (kind == LinkKind::kPci) return std::min(pci_gbytes_per_s(at(low).pci), pci_gbytes_per_s(at(high).pci));
    const auto one = [&](std::uint32_t node) {
      const GpuInfo& gpu = at(node).gpu;
      return kind == LinkKind::kXgmi ? xgmi_gbytes_per_s(gpu.gcn) : nvlink_gbytes_per_s(gpu.capability);
    };
    if (at(low).kind != NodeKind::kGpu) return count * one(high);
    return count * (at(high).kind == NodeKind::kGpu ? std::min(one(low), one(high)) : one(low));
  }

  void add(LinkKind kind, std::uint32_t low, std::uint32_t high, const LinkReport& reported) {
    std::uint32_t count = std::max(reported.count[0], reported.count[1]);
    const bool both = at(low).kind == NodeKind::kGpu && at(high).kind == NodeKind::kGpu;
    if (both && reported.count[0] != reported.count[1]) {
      const bool one_sided = reported.count[0] == 0 || reported.count[1] == 0;
      const std::size_t side = reported.count[0] > 0 ? 0 : 1;
      if (!one_sided) count = std::min(reported.count[0], reported.count[1]);
      draft_.report(
          Severity::kWarning, draft_.elements[reported.element[side]],
          fmt::format("{} links from {} to {}, but {} back", reported.count[side], at(side == 0 ? low : high).name,
                      at(side == 0 ? high : low).name, reported.count[1 - side]),
          fmt::format("{} are used; write the same count at both ends", count));
    }
    const double gbytes = reported.gbytes_per_s > 0 ? reported.gbytes_per_s : default_gbytes(kind, low, high, count);
    // A PCI link between two switches that is not in the PCI tree leads from the higher to the lower node number.
    // Links of the tree lead from the lower to the higher number, so the direction distinguishes them.
    const bool down = kind != LinkKind::kPci;
    draft_.graph.links.push_back(
        {down ? low : high, down ? high : low, kind, kind == LinkKind::kPci ? 1 : count, gbytes});
  }

  void read_cpu_links() {
    const std::vector<std::uint32_t> cpus = nodes_of(draft_.graph, NodeKind::kCpu);
    const std::string* listed = draft_.elements.front().find("tutti_cpulinks");
    if (listed != nullptr && *listed == "listed") {
      for (const std::uint32_t cpu : cpus) {
        for (const std::uint32_t link : draft_.children_named(draft_.element_of[cpu], "tutti_cpulink")) {
          read_cpu_link(link, cpu, cpus);
        }
      }
      return;
    }
    // check_whole() refuses a file with more than kMostCpus NUMA nodes, so the links of further nodes are not needed.
    const std::size_t count = std::min(cpus.size(), kMostCpus);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = i + 1; j < count; ++j) {
        const auto [low, high] = std::minmax(cpus[i], cpus[j]);
        draft_.graph.links.push_back(
            {low, high, LinkKind::kCpu, 1,
             std::min(cpu_link_gbytes_per_s(at(low).cpu), cpu_link_gbytes_per_s(at(high).cpu))});
      }
    }
  }

  void read_cpu_link(std::uint32_t index, std::uint32_t cpu, const std::vector<std::uint32_t>& cpus) {
    const XmlElement& element = draft_.elements[index];
    const std::int64_t numa = draft_.integer(element, "target", -1, 4'095, -2);
    const auto count = static_cast<std::uint32_t>(draft_.integer(element, "count", 1, kMostLinks, 1));
    const double gbytes = draft_.real(element, "gbytes_per_s", kMostGbytes, 0);
    const auto to = std::find_if(cpus.begin(), cpus.end(), [&](std::uint32_t other) { return at(other).numa == numa; });
    if (to == cpus.end() || *to == cpu || gbytes <= 0) {
      draft_.report(Severity::kError, element, "<tutti_cpulink> without another CPU or without bandwidth",
                    "write the numaid of another CPU as target, and gbytes_per_s above 0");
      return;
    }
    draft_.graph.links.push_back({std::min(cpu, *to), std::max(cpu, *to), LinkKind::kCpu, count, gbytes});
  }

  XmlDraft& draft_;
  std::uint32_t switch_ = XmlDraft::kNoNode;
  std::map<Ends, LinkReport> reports_;
};

}  // namespace

void read_links(XmlDraft& draft) { Links(draft).read(); }

}  // namespace tutti
