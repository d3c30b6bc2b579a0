// Finds paths by breadth-first searches over pairs (node, state of the path). The first search uses all links and finds
// the type of the best path to each node. Then, for each distinct bandwidth, the highest first, a search over the links
// with at least this bandwidth finds paths of these types. The state summarises the links that the path has crossed.
// One label per node, as in Dijkstra's algorithm, is not enough, because the best path to a node need not begin with
// the best path to the node before it. For example, a near but slow beginning loses against a fast one if both must
// cross a CPU later.
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

// The state of a path: the types of links that it has crossed. Together with the types of its ends it determines the
// path's type.
enum class PathState : std::uint8_t {
  kStart,    // no link yet
  kNvLink,   // only NVLink or xGMI, possibly through the NVSwitch
  kRelayed,  // NVLink, and one GPU that forwards it to another GPU
  kC2c,      // only NVLink-C2C
  kC2cDown,  // NVLink-C2C into a CPU, then PCI
  kSwitch,   // only PCI, through at most one PCI switch
  // Only PCI, through several PCI switches.
  kSwitches,
  kUp,     // PCI into a CPU
  kUpC2c,  // PCI into a CPU, then NVLink-C2C
  kCpu,    // in another way into a CPU and out of it again, or over PCI out of the CPU at which the path starts
  // Over a link between two NUMA nodes.
  kSockets,
};
constexpr std::size_t kPathStates = 11;

bool is_nvlink(LinkKind kind) { return kind == LinkKind::kNvLink || kind == LinkKind::kXgmi; }

PathType type_of(PathState state, NodeKind from, NodeKind to) {
  const auto is_device = [](NodeKind kind) { return kind == NodeKind::kNic || kind == NodeKind::kPci; };
  switch (state) {
    case PathState::kStart: return PathType::kLoc;
    case PathState::kNvLink: return PathType::kNvl;
    case PathState::kRelayed: return PathType::kNvb;
    case PathState::kC2c: return PathType::kC2c;
    case PathState::kC2cDown: return is_device(to) ? PathType::kP2c : PathType::kPhb;
    case PathState::kSwitch: return PathType::kPix;
    case PathState::kSwitches: return PathType::kPxb;
    case PathState::kUpC2c: return is_device(from) ? PathType::kP2c : PathType::kPhb;
    case PathState::kUp:
    case PathState::kCpu: return PathType::kPhb;
    case PathState::kSockets: return PathType::kSys;
  }
  return PathType::kDis;
}

std::optional<PathState> over_nvlink(PathState state, NodeKind at, NodeKind to) {
  if (state == PathState::kStart) return PathState::kNvLink;
  // Some CPUs have NVLink, for example POWER9. A path that enters such a CPU and leaves it over NVLink counts as a path
  // through a CPU.
  if (at == NodeKind::kCpu) return state == PathState::kSockets ? PathState::kSockets : PathState::kCpu;
  if (state != PathState::kNvLink) return std::nullopt;
  if (at == NodeKind::kNvSwitch) return PathState::kNvLink;
  if (at == NodeKind::kGpu && to == NodeKind::kGpu) return PathState::kRelayed;
  return std::nullopt;
}

std::optional<PathState> over_pci(PathState state, NodeKind at, NodeKind to) {
  if (at == NodeKind::kCpu) {
    if (state == PathState::kC2c) return PathState::kC2cDown;
    return state == PathState::kSockets ? PathState::kSockets : PathState::kCpu;
  }
  if (to == NodeKind::kCpu) {
    if (state == PathState::kStart && at == NodeKind::kPci) return PathState::kUp;
    return state == PathState::kStart || state == PathState::kSwitch || state == PathState::kSwitches
               ? std::optional(PathState::kUp)
               : std::nullopt;
  }
  if (state == PathState::kStart)
    return to == NodeKind::kPci && at == NodeKind::kPci ? PathState::kSwitches : PathState::kSwitch;
  if (at != NodeKind::kPci) return std::nullopt;
  if (state == PathState::kSwitch && to == NodeKind::kPci) return PathState::kSwitches;
  return state;
}

// Extends a path from a node of the kind `base`, which is now at a node of the kind `at`, by a link to a node of the
// kind `to`. Returns the new state. Returns nothing if the path must not use the link, for example because GPUs and
// NICs do not forward traffic, except that a GPU may forward it between two other GPUs.
std::optional<PathState> extend(PathState state, NodeKind base, NodeKind at, LinkKind link, NodeKind to) {
  if (state != PathState::kStart) {
    if (at == NodeKind::kNic) return std::nullopt;
    if (at == NodeKind::kGpu && (base != NodeKind::kGpu || !is_nvlink(link) || to != NodeKind::kGpu)) {
      return std::nullopt;
    }
  }
  switch (link) {
    case LinkKind::kNvLink:
    case LinkKind::kXgmi: return over_nvlink(state, at, to);
    case LinkKind::kPci: return over_pci(state, at, to);
    case LinkKind::kCpu: return PathState::kSockets;
    case LinkKind::kC2c:
      if (state == PathState::kStart || state == PathState::kC2c) return PathState::kC2c;
      if (state == PathState::kUp) return PathState::kUpC2c;
      return state == PathState::kNvLink ? PathState::kCpu : state;
  }
  return std::nullopt;
}

// A link, as seen from one of its ends.
struct Neighbour {
  std::uint32_t node = 0;
  Hop hop{};
};

// The search from one node, `base`.
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
  // A pair (node, state) that the search has reached, and the pair and the link from which it was reached.
  struct Reached {
    std::uint32_t node = 0;
    PathState state = PathState::kStart;
    std::uint32_t before = 0;  // index into reached_ of the pair before it on the path
    Hop hop{};
  };
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  NodeKind kind(std::uint32_t node) const { return graph_.nodes[node].kind; }
  bool is_card(std::uint32_t node) const {
    return kind(node) == NodeKind::kPci && is_nic_class(graph_.nodes[node].pci);
  }

  // Searches breadth first over links with at least the bandwidth `width`. Neighbours are visited in the order of their
  // numbers, so each pair (node, state) is first reached by a path with the fewest hops, and of these paths by the one
  // with the lowest node numbers.
  void walk(double width) {
    std::array<std::uint32_t, kPathStates> never{};
    never.fill(kNever);
    first_.assign(graph_.nodes.size(), never);
    first_[base_].fill(0);  // a path must not return to its start
    reached_.assign(1, {base_, PathState::kStart, 0, {}});
    for (std::uint32_t i = 0; i < reached_.size(); ++i) {
      const Reached at = reached_[i];
      for (const Neighbour& next : neighbours_[at.node]) {
        const GraphLink& link = graph_.links[next.hop.link];
        if (link.gbytes_per_s < width) continue;
        std::optional<PathState> state = extend(at.state, kind(base_), kind(at.node), link.kind, kind(next.node));
        // The node of a card with several ports is not a PCI switch, so it does not count as a second one.
        if (at.state == PathState::kSwitch && state == PathState::kSwitches && (is_card(at.node) || is_card(next.node)))
          state = at.state;
        if (!state || first_[next.node][static_cast<std::size_t>(*state)] != kNever) continue;
        first_[next.node][static_cast<std::size_t>(*state)] = static_cast<std::uint32_t>(reached_.size());
        reached_.push_back({next.node, *state, i, next.hop});
      }
    }
  }

  PathType nearest(std::uint32_t node) const {
    PathType best = PathType::kDis;
    for (std::size_t state = 0; state < kPathStates; ++state) {
      if (first_[node][state] == kNever) continue;
      best = std::min(best, type_of(static_cast<PathState>(state), kind(base_), kind(node)));
    }
    return best;
  }

  // If the last walk() has reached the node in a state that gives path.type, sets the hops and the bandwidth `width` of
  // the path and returns true. Otherwise returns false. Of several such states, uses the one that was reached first.
  bool settle(std::uint32_t node, double width, Path& path) const {
    std::uint32_t end = kNever;
    for (std::size_t state = 0; state < kPathStates; ++state) {
      if (type_of(static_cast<PathState>(state), kind(base_), kind(node)) != path.type) continue;
      end = std::min(end, first_[node][state]);
    }
    if (end == kNever) return false;
    path.gbytes_per_s = width;
    for (; end != 0; end = reached_[end].before) path.hops.push_back(reached_[end].hop);
    std::reverse(path.hops.begin(), path.hops.end());
    return true;
  }

  const Graph& graph_;
  std::uint32_t base_;
  std::vector<std::vector<Neighbour>> neighbours_;             // indexed by node, sorted
  std::vector<double> widths_;                                 // the distinct bandwidths of links, the highest first
  std::vector<Reached> reached_;                               // what the last walk() has reached, in this order
  std::vector<std::array<std::uint32_t, kPathStates>> first_;  // [node][state]: index into reached_, or kNever
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
