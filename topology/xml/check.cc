// Checks a topology file as a whole. For example, it finds numbers that appear twice, CPU masks that are invalid or
// overlap, GPUs and NICs that are not connected, and PCI links that are implausibly slow.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "topology/speeds.h"
#include "topology/xml/draft.h"
#include "topology/xml/values.h"

namespace tutti {
namespace {

// A warning is given if the link of a device is at least this many times as fast as that of the bridge above it. The
// limit is above 4, because on AMD machines a factor of 4 occurs by design.
constexpr double kMuchSlower = 5;

class Check {
 public:
  explicit Check(XmlDraft& draft) : draft_(draft) {}

  void run() {
    check_version();
    check_cpus();
    check_numbers();
    check_reach();
    check_bridges();
    const bool has_devices = std::any_of(nodes().begin(), nodes().end(), [](const GraphNode& node) {
      return node.kind == NodeKind::kGpu || node.kind == NodeKind::kNic;
    });
    if (!has_devices) {
      draft_.report(Severity::kWarning, draft_.elements.front(), "no GPU and no NIC is in this file",
                    "give PCI devices a class, or <gpu> and <nic> elements");
    }
  }

 private:
  const std::vector<GraphNode>& nodes() const { return draft_.graph.nodes; }

  void check_version() {
    const XmlElement& system = draft_.elements.front();
    const std::string version = draft_.text(system, "version");
    if (version == "1" || version == "2") return;
    draft_.report(Severity::kWarning, system,
                  version.empty() ? "<system> without version" : fmt::format("version {} of the format", version),
                  "it is read as version 1");
  }

  void check_cpus() {
    const std::vector<std::uint32_t> cpus = nodes_of(draft_.graph, NodeKind::kCpu);
    if (cpus.size() > kMostCpus) {
      draft_.report(Severity::kError, draft_.element_of_node(cpus[kMostCpus]),
                    fmt::format("{} <cpu> elements", cpus.size()), fmt::format("a machine has at most {}", kMostCpus));
      return;
    }
    std::map<std::int32_t, std::uint32_t> by_numa;
    for (const std::uint32_t cpu : cpus) {
      const XmlElement& element = draft_.element_of_node(cpu);
      const GraphNode& node = nodes()[cpu];
      if (const auto [first, fresh] = by_numa.emplace(node.numa, cpu); !fresh) {
        const XmlElement& other = draft_.element_of_node(first->second);
        const bool hosts = draft_.text(element, "host_hash") != draft_.text(other, "host_hash");
        draft_.report(Severity::kError, element,
                      fmt::format("NUMA node {} appears twice, first in line {}", node.numa, other.line),
                      hosts ? "the file is of several machines; keep the CPUs of one host_hash"
                            : "give each <cpu> its own numaid");
      }
      if (cpus.size() > 1 && node.cpu.vendor.empty() && node.cpu.arch.empty()) {
        draft_.report(Severity::kNote, element, fmt::format("{} without arch and vendor", node.name),
                      fmt::format("{} GB/s between sockets are assumed", cpu_link_gbytes_per_s(node.cpu)));
      }
    }
    check_masks(cpus);
  }

  void check_masks(const std::vector<std::uint32_t>& cpus) {
    for (std::size_t i = 0; i < cpus.size(); ++i) {
      const std::string& mask = nodes()[cpus[i]].cpu.affinity;
      if (mask.empty()) continue;
      const XmlElement& element = draft_.element_of_node(cpus[i]);
      if (!is_mask(mask)) {
        draft_.report(Severity::kError, element, fmt::format("affinity of {} is not a CPU mask", nodes()[cpus[i]].name),
                      "write words of 8 hexadecimal digits with commas between them, the lowest last");
        continue;
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (!masks_overlap(mask, nodes()[cpus[j]].cpu.affinity)) continue;
        draft_.report(
            Severity::kWarning, element,
            fmt::format("the affinity masks of {} and {} overlap", nodes()[cpus[j]].name, nodes()[cpus[i]].name),
            "a core belongs to one NUMA node; threads may be bound to the wrong one");
        break;
      }
    }
  }

  void check_numbers() {
    std::map<std::int32_t, std::uint32_t> gpus;
    std::map<std::int32_t, std::uint32_t> ranks;
    std::map<std::int32_t, std::uint32_t> nics;
    for (std::uint32_t i = 0; i < nodes().size(); ++i) {
      const GraphNode& node = nodes()[i];
      if (node.kind == NodeKind::kGpu) {
        check_number(gpus, node.gpu.device, i, Severity::kError, "GPU", "give each GPU its own dev");
        if (node.gpu.rank >= 0) {
          check_number(ranks, node.gpu.rank, i, Severity::kError, "rank", "give each rank one GPU");
        }
      }
      if (node.kind == NodeKind::kNic && !node.nic.collective) {
        check_number(nics, node.nic.device, i, Severity::kWarning, "NIC", "give each NIC its own dev");
      }
    }
  }

  void check_number(std::map<std::int32_t, std::uint32_t>& seen, std::int32_t number, std::uint32_t node,
                    Severity severity, std::string_view what, std::string advice) {
    const auto [first, fresh] = seen.emplace(number, node);
    if (fresh) return;
    draft_.report(
        severity, draft_.element_of_node(node),
        fmt::format("{} {} appears twice, first in line {}", what, number, draft_.element_of_node(first->second).line),
        std::move(advice));
  }

  // Reports each GPU and NIC that no links connect to the first GPU or NIC of the file. Uses disjoint sets of nodes,
  // which each link merges.
  void check_reach() {
    std::vector<std::uint32_t> leader(nodes().size());
    std::iota(leader.begin(), leader.end(), 0U);
    const auto find = [&](std::uint32_t node) {
      while (leader[node] != node) node = leader[node] = leader[leader[node]];
      return node;
    };
    for (const GraphLink& link : draft_.graph.links) leader[find(link.from)] = find(link.to);
    std::uint32_t first = XmlDraft::kNoNode;
    for (std::uint32_t i = 0; i < nodes().size(); ++i) {
      if (nodes()[i].kind != NodeKind::kGpu && nodes()[i].kind != NodeKind::kNic) continue;
      if (first == XmlDraft::kNoNode) first = i;
      if (find(i) == find(first)) continue;
      draft_.report(Severity::kWarning, draft_.element_of_node(i),
                    fmt::format("no path joins {} and {}", nodes()[first].name, nodes()[i].name),
                    "link their CPUs, or put them on one");
    }
  }

  // Reports each bridge if its link towards the CPU is much slower (kMuchSlower) than the link of a device directly
  // beneath it, and the file has the speeds of both. Virtual machines often report such wrong speeds.
  void check_bridges() {
    std::vector<bool> reported(nodes().size(), false);
    for (std::uint32_t i = 0; i < nodes().size(); ++i) {
      const std::uint32_t above = draft_.parent_of[i];
      if (above == XmlDraft::kNoNode || nodes()[above].kind != NodeKind::kPci || reported[above]) continue;
      const PciInfo& upper = nodes()[above].pci;
      const PciInfo& lower = nodes()[i].pci;
      if (upper.gigatransfers_per_s == 0 || lower.gigatransfers_per_s == 0 || lower.bus_id.empty()) continue;
      if (pci_gbytes_per_s(lower) < kMuchSlower * pci_gbytes_per_s(upper)) continue;
      reported[above] = true;
      draft_.report(Severity::kWarning, draft_.element_of_node(above),
                    fmt::format("the link up from {} carries {:.3g} GB/s, that of {} beneath it {:.3g}",
                                nodes()[above].name, pci_gbytes_per_s(upper), nodes()[i].name, pci_gbytes_per_s(lower)),
                    "it is used as it is; virtual machines often report a wrong speed: if so, correct link_speed and "
                    "link_width");
    }
  }

  XmlDraft& draft_;
};

}  // namespace

void check_whole(XmlDraft& draft) { Check(draft).run(); }

}  // namespace tutti
