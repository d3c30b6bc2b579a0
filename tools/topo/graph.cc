#include "tools/topo/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "topology/pci_classes.h"

namespace tutti::tool {
namespace {

using nlohmann::json;

constexpr std::uint32_t kNone = ~0U;

std::string counted(std::size_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

// With more GPUs (or CPUs, if there are no GPUs) and NICs together than this, neither the matrix of paths is printed,
// because it would be too wide to read, nor the paths in the JSON object.
constexpr std::size_t kMostEnds = 128;

// The PCI tree. For each node: the indexes of all its links, the link that leads to it from above (kNone for a root),
// and the nodes directly below it.
struct Tree {
  explicit Tree(const Graph& graph)
      : links(graph.nodes.size()), link_to(graph.nodes.size(), kNone), beneath(graph.nodes.size()) {
    for (std::uint32_t i = 0; i < graph.links.size(); ++i) {
      links[graph.links[i].from].push_back(i);
      links[graph.links[i].to].push_back(i);
    }
    std::vector<std::uint32_t> open = nodes_of(graph, NodeKind::kCpu);
    for (std::size_t i = 0; i < open.size(); ++i) {
      for (const std::uint32_t link : links[open[i]]) {
        const GraphLink& down = graph.links[link];
        if (down.kind != LinkKind::kPci || down.from != open[i] || link_to[down.to] != kNone) continue;
        if (graph.nodes[down.to].kind == NodeKind::kCpu) continue;
        link_to[down.to] = link;
        beneath[open[i]].push_back(down.to);
        open.push_back(down.to);
      }
    }
  }

  std::vector<std::vector<std::uint32_t>> links;
  std::vector<std::uint32_t> link_to;
  std::vector<std::vector<std::uint32_t>> beneath;
};

std::string link_text(const Graph& graph, const GraphLink& link, std::uint32_t from) {
  const std::string& other = graph.nodes[link.from == from ? link.to : link.from].name;
  const std::string count = link.count > 1 ? fmt::format(" x {}", link.count) : "";
  return fmt::format("{}{} to {}: {}", to_string(link.kind), count, other, number_text(link.gbytes_per_s));
}

// Describes the links of a part that are not in the PCI tree. To keep the rows short, a link between two parts of the
// same kind is listed only at its `from` end, a link to an NVSwitch not at the switch, and a C2C link not at the CPU.
std::string other_links(const Graph& graph, const Tree& tree, std::uint32_t node) {
  std::vector<std::string> texts;
  for (const std::uint32_t i : tree.links[node]) {
    const GraphLink& link = graph.links[i];
    const bool mine = link.from == node || (link.to == node && graph.nodes[link.from].kind != graph.nodes[node].kind);
    if (!mine || tree.link_to[link.to] == i || graph.nodes[node].kind == NodeKind::kNvSwitch) continue;
    if (link.kind == LinkKind::kC2c && graph.nodes[node].kind == NodeKind::kCpu) continue;
    texts.push_back(link_text(graph, link, node));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void add_rows(const Graph& graph, const Tree& tree, std::uint32_t node, std::size_t depth,
              std::vector<std::vector<std::string>>& rows) {
  const std::uint32_t link = tree.link_to[node];
  rows.push_back({std::string(2 * depth, ' ') + graph.nodes[node].name, description(graph.nodes[node]),
                  link == kNone ? "" : number_text(graph.links[link].gbytes_per_s), other_links(graph, tree, node)});
  for (const std::uint32_t child : tree.beneath[node]) add_rows(graph, tree, child, depth + 1, rows);
}

// The nodes from which paths are shown: the GPUs, or the CPUs if there are no GPUs. The paths lead to these nodes and
// to the NICs.
std::vector<std::uint32_t> ends_of(const Graph& graph) {
  std::vector<std::uint32_t> ends = nodes_of(graph, NodeKind::kGpu);
  if (ends.empty()) ends = nodes_of(graph, NodeKind::kCpu);
  return ends;
}

std::string describe(PathType type) {
  switch (type) {
    case PathType::kLoc: return "itself";
    case PathType::kNvl: return "NVLink or xGMI, directly or by the switch";
    case PathType::kNvb: return "NVLink through another GPU";
    case PathType::kC2c: return "chip to chip";
    case PathType::kPix: return "at most one PCI switch";
    case PathType::kPxb: return "several PCI switches";
    case PathType::kP2c: return "chip to chip and PCI";
    case PathType::kPxn: return "a NIC through a nearer GPU";
    case PathType::kPhb: return "through a CPU";
    case PathType::kSys: return "between sockets";
    case PathType::kNet: return "through the network";
    case PathType::kDis: return "not at all";
  }
  return "unknown";
}

json part_json(const GraphNode& node) {
  json part = {{"name", node.name}, {"kind", to_string(node.kind)}};
  if (node.kind == NodeKind::kCpu) part["numa"] = node.numa;
  if (!node.pci.bus_id.empty()) {
    part["pci_id"] = node.pci.bus_id;
    part["pci_class"] = fmt::format("0x{:06x}", node.pci.device_class);
    part["gigatransfers_per_s"] =
        node.pci.gigatransfers_per_s == 0 ? json(nullptr) : json(node.pci.gigatransfers_per_s);
    part["lanes"] = node.pci.width == 0 ? json(nullptr) : json(node.pci.width);
  }
  if (node.kind == NodeKind::kGpu) {
    part["device"] = node.gpu.device;
    part["rank"] = node.gpu.rank < 0 ? json(nullptr) : json(node.gpu.rank);
    part["capability"] = node.gpu.capability == 0 ? json(nullptr) : json(node.gpu.capability);
  }
  if (node.kind == NodeKind::kNic) {
    part["device"] = node.nic.device;
    part["megabits_per_s"] = node.nic.megabits_per_s == 0 ? json(nullptr) : json(node.nic.megabits_per_s);
  }
  return part;
}

}  // namespace

std::string number_text(double value) {
  if (!std::isfinite(value)) return "unlimited";
  if (value >= 100) return fmt::format("{:.0f}", value);
  std::string text = fmt::format("{:.{}f}", value, value >= 10 ? 1 : 2);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string description(const GraphNode& node) {
  std::vector<std::string> words;
  switch (node.kind) {
    case NodeKind::kCpu:
      if (!node.cpu.vendor.empty()) words.push_back(node.cpu.vendor);
      if (!node.cpu.arch.empty()) words.push_back(node.cpu.arch);
      return fmt::format("{}", fmt::join(words, " "));
    case NodeKind::kGpu:
      if (!node.gpu.gcn.empty()) {
        words.push_back(node.gpu.gcn.starts_with("gfx") ? node.gpu.gcn : "gcn " + node.gpu.gcn);
      } else if (node.gpu.capability > 0) {
        words.push_back(fmt::format("sm_{}", node.gpu.capability));
      }
      words.push_back(node.pci.bus_id);
      if (node.gpu.rank >= 0) words.push_back(fmt::format("rank {}", node.gpu.rank));
      break;
    case NodeKind::kNic:
      if (node.nic.megabits_per_s > 0) words.push_back(number_text(node.nic.megabits_per_s / 1'000) + " Gbit/s");
      if (!node.pci.bus_id.empty()) words.push_back(node.pci.bus_id);
      if (node.nic.port > 1) words.push_back(fmt::format("port {}", node.nic.port));
      break;
    case NodeKind::kPci:
      if (node.pci.gigatransfers_per_s > 0 && node.pci.width > 0) {
        words.push_back(fmt::format("{} GT/s x {}", node.pci.gigatransfers_per_s, node.pci.width));
      }
      if (is_nic_class(node.pci)) words.emplace_back("card");
      break;
    case NodeKind::kNvSwitch: break;
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string columns_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("  {:<{}}", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string parts_text(const Graph& graph) {
  std::vector<std::string> parts;
  const auto add = [&](NodeKind kind, std::string_view one, std::string_view many) {
    const std::size_t count = nodes_of(graph, kind).size();
    if (count > 0) parts.push_back(counted(count, one, many));
  };
  add(NodeKind::kCpu, "CPU", "CPUs");
  const auto cards =
      static_cast<std::size_t>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
        return node.kind == NodeKind::kPci && is_nic_class(node.pci);
      }));
  const std::size_t switches = nodes_of(graph, NodeKind::kPci).size() - cards;
  if (switches > 0) parts.push_back(counted(switches, "PCI switch", "PCI switches"));
  if (cards > 0) parts.push_back(counted(cards, "card with several ports", "cards with several ports"));
  add(NodeKind::kGpu, "GPU", "GPUs");
  add(NodeKind::kNvSwitch, "NVSwitch", "NVSwitches");
  add(NodeKind::kNic, "NIC", "NICs");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string graph_text(const Graph& graph) {
  const Tree tree(graph);
  std::vector<std::vector<std::string>> rows{{"part", "what it is", "GB/s up", "other links (GB/s)"}};
  for (std::uint32_t node = 0; node < graph.nodes.size(); ++node) {
    // True if the node is a root of the tree: a CPU, or a part that no PCI links connect to a CPU.
    if (tree.link_to[node] == kNone) add_rows(graph, tree, node, 0, rows);
  }
  return columns_text(rows);
}

std::string matrix_text(const Graph& graph) {
  const std::vector<std::uint32_t> from = ends_of(graph);
  std::vector<std::uint32_t> to = from;
  const std::vector<std::uint32_t> nics = nodes_of(graph, NodeKind::kNic);
  to.insert(to.end(), nics.begin(), nics.end());
  if (to.size() < 2) return {};
  if (to.size() > kMostEnds) return fmt::format("  {} GPUs and NICs are too many for a table of paths\n", to.size());
  std::vector<std::vector<std::string>> rows{{""}};
  for (const std::uint32_t node : to) rows.front().push_back(graph.nodes[node].name);
  std::map<PathType, std::pair<double, double>> range;  // smallest and largest bandwidth of paths of each type
  for (const std::uint32_t node : from) {
    const std::vector<Path> paths = paths_from(graph, node);
    rows.push_back({graph.nodes[node].name});
    for (const std::uint32_t other : to) {
      const Path& path = paths[other];
      rows.back().push_back(other == node ? "-" : std::string(to_string(path.type)));
      if (other == node) continue;
      const auto [at, fresh] = range.try_emplace(path.type, path.gbytes_per_s, path.gbytes_per_s);
      if (fresh) continue;
      at->second = {std::min(at->second.first, path.gbytes_per_s), std::max(at->second.second, path.gbytes_per_s)};
    }
  }
  std::vector<std::vector<std::string>> legend;
  for (const auto& [type, gbytes] : range) {
    const std::string least = number_text(gbytes.first);
    const std::string most = number_text(gbytes.second);
    const std::string text = least == most ? least : least + " to " + most;
    legend.push_back({std::string(to_string(type)), type == PathType::kDis ? "" : text + " GB/s", describe(type)});
  }
  return columns_text(rows) + "\n" + columns_text(legend);
}

std::string findings_text(const std::string& file, std::span<const Finding> findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{}:{}:{}: {}: {}; {}\n", file, finding.line, finding.column, to_string(finding.severity),
                        finding.what, finding.advice);
  }
  return text;
}

json graph_json(const Graph& graph) {
  json document = {{"name", graph.name}, {"parts", json::array()}, {"links", json::array()}, {"paths", json::array()}};
  for (const GraphNode& node : graph.nodes) document["parts"].push_back(part_json(node));
  for (const GraphLink& link : graph.links) {
    document["links"].push_back({{"from", graph.nodes[link.from].name},
                                 {"to", graph.nodes[link.to].name},
                                 {"kind", to_string(link.kind)},
                                 {"count", link.count},
                                 {"gbytes_per_s", link.gbytes_per_s}});
  }
  std::vector<std::uint32_t> to = ends_of(graph);
  const std::vector<std::uint32_t> nics = nodes_of(graph, NodeKind::kNic);
  to.insert(to.end(), nics.begin(), nics.end());
  for (const std::uint32_t from : to.size() > kMostEnds ? std::vector<std::uint32_t>{} : ends_of(graph)) {
    const std::vector<Path> paths = paths_from(graph, from);
    for (const std::uint32_t other : to) {
      if (other == from) continue;
      const bool none = paths[other].type == PathType::kDis;
      document["paths"].push_back({{"from", graph.nodes[from].name},
                                   {"to", graph.nodes[other].name},
                                   {"type", to_string(paths[other].type)},
                                   {"gbytes_per_s", none ? json(nullptr) : json(paths[other].gbytes_per_s)}});
    }
  }
  return document;
}

json finding_json(const Finding& finding) {
  return {{"severity", to_string(finding.severity)},
          {"line", finding.line},
          {"column", finding.column},
          {"what", finding.what},
          {"advice", finding.advice}};
}

}  // namespace tutti::tool
