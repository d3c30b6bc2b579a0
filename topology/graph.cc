// Paths: a breadth-first search over (node, what the way has met so far) for each distinct bandwidth, the widest first.
// One label for each node, as in Dijkstra's algorithm, would not do: the best way to a node need not begin with the
// best way to the node before it (a near but narrow beginning loses to a wide one once both must cross a CPU).
#include "topology/graph.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "topology/pci_classes.h"

namespace tutti {
namespace {

// What a way has met so far; with the kinds of its ends it decides the path's type.
enum class Way : std::uint8_t {
  kHere,     // nothing
  kNvLink,   // NVLink or xGMI, the switch included
  kRelayed,  // NVLink through one GPU
  kC2c,      // chip to chip only
  kC2cDown,  // chip to chip into a CPU, then PCI
  kSwitch,   // at most one PCI switch
  kSwitches,
  kUp,     // PCI into a CPU
  kUpC2c,  // PCI into a CPU, then chip to chip
  kCpu,    // PCI and a CPU
  kSockets,
};
constexpr std::size_t kWays = 11;

bool is_nvlink(LinkKind kind) { return kind == LinkKind::kNvLink || kind == LinkKind::kXgmi; }

PathType type_of(Way way, NodeKind from, NodeKind to) {
  const auto is_device = [](NodeKind kind) { return kind == NodeKind::kNic || kind == NodeKind::kPci; };
  switch (way) {
    case Way::kHere: return PathType::kLoc;
    case Way::kNvLink: return PathType::kNvl;
    case Way::kRelayed: return PathType::kNvb;
    case Way::kC2c: return PathType::kC2c;
    case Way::kC2cDown: return is_device(to) ? PathType::kP2c : PathType::kPhb;
    case Way::kSwitch: return PathType::kPix;
    case Way::kSwitches: return PathType::kPxb;
    case Way::kUpC2c: return is_device(from) ? PathType::kP2c : PathType::kPhb;
    case Way::kUp:
    case Way::kCpu: return PathType::kPhb;
    case Way::kSockets: return PathType::kSys;
  }
  return PathType::kDis;
}

std::optional<Way> over_nvlink(Way way, NodeKind at, NodeKind to) {
  if (way == Way::kHere) return Way::kNvLink;
  if (at == NodeKind::kCpu) return way == Way::kSockets ? Way::kSockets : Way::kCpu;  // some CPUs have NVLink
  if (way != Way::kNvLink) return std::nullopt;
  if (at == NodeKind::kNvSwitch) return Way::kNvLink;
  if (at == NodeKind::kGpu && to == NodeKind::kGpu) return Way::kRelayed;
  return std::nullopt;
}

std::optional<Way> over_pci(Way way, NodeKind at, NodeKind to) {
  if (at == NodeKind::kCpu) {
    if (way == Way::kC2c) return Way::kC2cDown;
    return way == Way::kSockets ? Way::kSockets : Way::kCpu;
  }
  if (to == NodeKind::kCpu) {
    if (way == Way::kHere && at == NodeKind::kPci) return Way::kUp;
    return way == Way::kHere || way == Way::kSwitch || way == Way::kSwitches ? std::optional(Way::kUp) : std::nullopt;
  }
  if (way == Way::kHere) return to == NodeKind::kPci && at == NodeKind::kPci ? Way::kSwitches : Way::kSwitch;
  if (at != NodeKind::kPci) return std::nullopt;
  if (way == Way::kSwitch && to == NodeKind::kPci) return Way::kSwitches;
  return way;
}

// What a way becomes by one more link; nothing where it may not be taken: a GPU or a NIC on the way carries no traffic
// of others, but for a GPU between two GPUs.
std::optional<Way> extend(Way way, NodeKind base, NodeKind at, LinkKind link, NodeKind to) {
  if (way != Way::kHere) {
    if (at == NodeKind::kNic) return std::nullopt;
    if (at == NodeKind::kGpu && (base != NodeKind::kGpu || !is_nvlink(link) || to != NodeKind::kGpu)) {
      return std::nullopt;
    }
  }
  switch (link) {
    case LinkKind::kNvLink:
    case LinkKind::kXgmi: return over_nvlink(way, at, to);
    case LinkKind::kPci: return over_pci(way, at, to);
    case LinkKind::kCpu: return Way::kSockets;
    case LinkKind::kC2c:
      if (way == Way::kHere || way == Way::kC2c) return Way::kC2c;
      if (way == Way::kUp) return Way::kUpC2c;
      return way == Way::kNvLink ? Way::kCpu : way;
  }
  return std::nullopt;
}

// A link as it is seen from one of its ends.
struct Neighbour {
  std::uint32_t node = 0;
  Hop hop{};
};

class Paths {
 public:
  Paths(const Graph& graph, std::uint32_t base) : graph_(graph), base_(base), neighbours_(graph.nodes.size()) {
    TUTTI_ASSERT(base < graph.nodes.size(), "node {} of {}", base, graph.nodes.size());
    for (std::uint32_t i = 0; i < graph.links.size(); ++i) {
      const GraphLink& link = graph.links[i];
      TUTTI_ASSERT(link.from < graph.nodes.size() && link.to < graph.nodes.size(), "link {} leads nowhere", i);
      TUTTI_ASSERT(link.gbytes_per_s > 0, "link {} has no bandwidth", i);
      neighbours_[link.from].push_back({link.to, {i, false}});
      neighbours_[link.to].push_back({link.from, {i, true}});
      widths_.push_back(link.gbytes_per_s);
    }
    for (std::vector<Neighbour>& at : neighbours_) {
      std::sort(at.begin(), at.end(), [](const Neighbour& a, const Neighbour& b) {
        return a.node != b.node ? a.node < b.node : a.hop.link < b.hop.link;
      });
    }
    std::sort(widths_.begin(), widths_.end(), std::greater<>());
    widths_.erase(std::unique(widths_.begin(), widths_.end()), widths_.end());
  }

  std::vector<Path> find() {
    std::vector<Path> paths(graph_.nodes.size());
    paths[base_] = {PathType::kLoc, std::numeric_limits<double>::infinity(), {}};
    if (widths_.empty()) return paths;
    walk(widths_.back());
    std::vector<std::uint32_t> missing;
    for (std::uint32_t node = 0; node < paths.size(); ++node) {
      if (node != base_) paths[node].type = nearest(node);
      if (paths[node].type != PathType::kDis && node != base_) missing.push_back(node);
    }
    for (std::size_t i = 0; i < widths_.size() && !missing.empty(); ++i) {
      walk(widths_[i]);
      std::erase_if(missing, [&](std::uint32_t node) { return settle(node, widths_[i], paths[node]); });
    }
    return paths;
  }

 private:
  // How a (node, way) was reached.
  struct Reached {
    std::uint32_t node = 0;
    Way way = Way::kHere;
    std::uint32_t before = 0;  // index into reached_
    Hop hop{};
  };
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  NodeKind kind(std::uint32_t node) const { return graph_.nodes[node].kind; }
  bool is_card(std::uint32_t node) const {
    return kind(node) == NodeKind::kPci && is_nic_class(graph_.nodes[node].pci);
  }

  // Breadth first, neighbours in the order of their numbers: what is reached first has the fewest hops, and of those
  // the lowest numbers.
  void walk(double width) {
    std::array<std::uint32_t, kWays> never{};
    never.fill(kNever);
    first_.assign(graph_.nodes.size(), never);
    first_[base_].fill(0);  // no way leads back to its beginning
    reached_.assign(1, {base_, Way::kHere, 0, {}});
    for (std::uint32_t i = 0; i < reached_.size(); ++i) {
      const Reached at = reached_[i];
      for (const Neighbour& next : neighbours_[at.node]) {
        const GraphLink& link = graph_.links[next.hop.link];
        if (link.gbytes_per_s < width) continue;
        std::optional<Way> way = extend(at.way, kind(base_), kind(at.node), link.kind, kind(next.node));
        // A card with several ports is no second switch.
        if (at.way == Way::kSwitch && way == Way::kSwitches && (is_card(at.node) || is_card(next.node))) way = at.way;
        if (!way || first_[next.node][static_cast<std::size_t>(*way)] != kNever) continue;
        first_[next.node][static_cast<std::size_t>(*way)] = static_cast<std::uint32_t>(reached_.size());
        reached_.push_back({next.node, *way, i, next.hop});
      }
    }
  }

  PathType nearest(std::uint32_t node) const {
    PathType best = PathType::kDis;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (first_[node][way] == kNever) continue;
      best = std::min(best, type_of(static_cast<Way>(way), kind(base_), kind(node)));
    }
    return best;
  }

  // Fills the path where the last walk reached the node by a way of the path's type; of several the one reached first.
  bool settle(std::uint32_t node, double width, Path& path) const {
    std::uint32_t end = kNever;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (type_of(static_cast<Way>(way), kind(base_), kind(node)) != path.type) continue;
      end = std::min(end, first_[node][way]);
    }
    if (end == kNever) return false;
    path.gbytes_per_s = width;
    for (; end != 0; end = reached_[end].before) path.hops.push_back(reached_[end].hop);
    std::reverse(path.hops.begin(), path.hops.end());
    return true;
  }

  const Graph& graph_;
  std::uint32_t base_;
  std::vector<std::vector<Neighbour>> neighbours_;       // by node, sorted
  std::vector<double> widths_;                           // distinct, the widest first
  std::vector<Reached> reached_;                         // of the last walk
  std::vector<std::array<std::uint32_t, kWays>> first_;  // [node][way]: index into reached_, or kNever
};

std::int32_t number_of(const GraphNode& node) {
  switch (node.kind) {
    case NodeKind::kCpu: return node.numa;
    case NodeKind::kGpu: return node.gpu.device;
    case NodeKind::kNic: return node.nic.device;
    case NodeKind::kPci:
    case NodeKind::kNvSwitch: return 0;
  }
  return 0;
}

}  // namespace

std::uint32_t add_node(Graph& graph, NodeKind kind, std::string name) {
  GraphNode node;
  node.kind = kind;
  node.name = std::move(name);
  graph.nodes.push_back(std::move(node));
  return static_cast<std::uint32_t>(graph.nodes.size() - 1);
}

void add_link(Graph& graph, std::uint32_t from, std::uint32_t to, LinkKind kind, std::uint32_t count,
              double gbytes_per_s) {
  TUTTI_ASSERT(from < graph.nodes.size() && to < graph.nodes.size() && from != to);
  graph.links.push_back({from, to, kind, count, gbytes_per_s});
}

std::vector<std::uint32_t> nodes_of(const Graph& graph, NodeKind kind) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].kind == kind) nodes.push_back(i);
  }
  std::stable_sort(nodes.begin(), nodes.end(), [&](std::uint32_t a, std::uint32_t b) {
    return number_of(graph.nodes[a]) < number_of(graph.nodes[b]);
  });
  return nodes;
}

std::vector<Path> paths_from(const Graph& graph, std::uint32_t node) { return Paths(graph, node).find(); }

std::string_view to_string(NodeKind kind) {
  switch (kind) {
    case NodeKind::kCpu: return "cpu";
    case NodeKind::kPci: return "pci";
    case NodeKind::kGpu: return "gpu";
    case NodeKind::kNvSwitch: return "nvswitch";
    case NodeKind::kNic: return "nic";
  }
  return "unknown";
}

std::string_view to_string(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvLink: return "NVLink";
    case LinkKind::kXgmi: return "xGMI";
    case LinkKind::kC2c: return "C2C";
    case LinkKind::kPci: return "PCI";
    case LinkKind::kCpu: return "CPU";
  }
  return "unknown";
}

std::string_view to_string(PathType type) {
  constexpr std::array<std::string_view, 12> kNames{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                                    "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};
  const auto index = static_cast<std::size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace tutti
