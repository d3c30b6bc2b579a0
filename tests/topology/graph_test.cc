// Tests of the paths in small graphs. The expected values were calculated by hand.
#include "topology/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "topology/cluster.h"

namespace tutti {
namespace {

std::uint32_t add(Graph& graph, NodeKind kind, std::string name, std::int32_t number = 0) {
  const std::uint32_t index = add_node(graph, kind, std::move(name));
  GraphNode& node = graph.nodes[index];
  node.numa = node.gpu.device = node.nic.device = number;
  return index;
}

std::uint32_t node(const Graph& graph, std::string_view name) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const GraphNode& candidate) { return candidate.name == name; });
  EXPECT_NE(found, graph.nodes.end()) << name;
  return static_cast<std::uint32_t>(found - graph.nodes.begin());
}

Path path(const Graph& graph, std::string_view from, std::string_view to) {
  return paths_from(graph, node(graph, from))[node(graph, to)];
}

// Returns, for example, "PIX 24 via pci a": the type, the bandwidth, and the nodes on the path.
std::string path_text(const Graph& graph, std::string_view from, std::string_view to) {
  const Path found = path(graph, from, to);
  std::string text = std::string(to_string(found.type)) + " " + std::to_string(std::lround(found.gbytes_per_s));
  for (std::size_t i = 0; i + 1 < found.hops.size(); ++i) {
    const GraphLink& link = graph.links[found.hops[i].link];
    text += (i == 0 ? " via " : ", ") + graph.nodes[found.hops[i].reversed ? link.from : link.to].name;
  }
  return text;
}

// Two sockets. Below the first is a switch with two further switches. Below the second, one device of each type is
// connected directly to the CPU.
Graph pci_box() {
  Graph graph;
  const std::uint32_t cpu0 = add(graph, NodeKind::kCpu, "cpu0", 0), cpu1 = add(graph, NodeKind::kCpu, "cpu1", 1);
  const std::uint32_t top = add(graph, NodeKind::kPci, "top");
  const std::uint32_t left = add(graph, NodeKind::kPci, "left"), right = add(graph, NodeKind::kPci, "right");
  const std::uint32_t gpu0 = add(graph, NodeKind::kGpu, "gpu0", 0), gpu1 = add(graph, NodeKind::kGpu, "gpu1", 1);
  const std::uint32_t gpu2 = add(graph, NodeKind::kGpu, "gpu2", 2);
  const std::uint32_t nic0 = add(graph, NodeKind::kNic, "nic0", 0), nic1 = add(graph, NodeKind::kNic, "nic1", 1);
  graph.links = {
      {cpu0, cpu1, LinkKind::kCpu, 1, 10}, {cpu0, top, LinkKind::kPci, 1, 24},  {top, left, LinkKind::kPci, 1, 20},
      {top, right, LinkKind::kPci, 1, 24}, {left, gpu0, LinkKind::kPci, 1, 24}, {right, gpu1, LinkKind::kPci, 1, 24},
      {cpu1, gpu2, LinkKind::kPci, 1, 24}, {left, nic0, LinkKind::kPci, 1, 12}, {cpu1, nic1, LinkKind::kPci, 1, 12}};
  return graph;
}

TEST(Graph, PathsOfATreeOfPciSwitches) {
  const Graph graph = pci_box();
  EXPECT_EQ(path_text(graph, "gpu0", "nic0"), "PIX 12 via left");
  EXPECT_EQ(path_text(graph, "gpu0", "gpu1"), "PXB 20 via left, top, right");
  EXPECT_EQ(path_text(graph, "gpu1", "nic0"), "PXB 12 via right, top, left");
  EXPECT_EQ(path_text(graph, "gpu2", "nic1"), "PHB 12 via cpu1");
  EXPECT_EQ(path_text(graph, "gpu0", "gpu2"), "SYS 10 via left, top, cpu0, cpu1");
  EXPECT_EQ(path_text(graph, "gpu0", "cpu0"), "PHB 20 via left, top");
  EXPECT_EQ(path_text(graph, "cpu0", "cpu1"), "SYS 10");
  EXPECT_EQ(path_text(graph, "cpu0", "gpu2"), "SYS 10 via cpu1");
  const Path self = path(graph, "gpu0", "gpu0");
  EXPECT_EQ(self.type, PathType::kLoc);
  EXPECT_TRUE(std::isinf(self.gbytes_per_s) && self.hops.empty());
}

TEST(Graph, OneGpuMayRelayBetweenGpusAndNothingElse) {
  Graph graph = pci_box();
  const std::uint32_t gpu3 = add(graph, NodeKind::kGpu, "gpu3", 3);  // connected only by NVLink
  graph.links.push_back({node(graph, "gpu0"), node(graph, "gpu1"), LinkKind::kNvLink, 2, 40});
  graph.links.push_back({node(graph, "gpu1"), node(graph, "gpu2"), LinkKind::kNvLink, 1, 20});
  graph.links.push_back({node(graph, "gpu2"), gpu3, LinkKind::kXgmi, 1, 20});
  EXPECT_EQ(path_text(graph, "gpu0", "gpu1"), "NVL 40");
  EXPECT_EQ(path_text(graph, "gpu0", "gpu2"), "NVB 20 via gpu1");
  EXPECT_EQ(path_text(graph, "gpu0", "gpu3"), "DIS 0") << "two GPUs would have to forward data, but only one may";
  EXPECT_EQ(path_text(graph, "nic0", "gpu3"), "DIS 0") << "a GPU does not forward data for a NIC";
  EXPECT_EQ(path_text(graph, "cpu1", "gpu3"), "DIS 0");
  EXPECT_EQ(path_text(graph, "gpu1", "nic1"), "SYS 10 via right, top, cpu0, cpu1");
}

TEST(Graph, TheNearestTypeGoesBeforeTheWidestAndThisBeforeTheFewestHops) {
  Graph graph;
  for (int i = 0; i < 5; ++i) add(graph, NodeKind::kGpu, "gpu" + std::to_string(i), i);
  graph.links = {{0, 1, LinkKind::kNvLink, 1, 10}, {0, 2, LinkKind::kNvLink, 1, 50}, {2, 1, LinkKind::kNvLink, 1, 50},
                 {0, 3, LinkKind::kNvLink, 1, 30}, {3, 4, LinkKind::kNvLink, 1, 40}, {2, 4, LinkKind::kNvLink, 1, 30}};
  EXPECT_EQ(path_text(graph, "gpu0", "gpu1"), "NVL 10") << "the nearer path wins, although it is narrower";
  EXPECT_EQ(path_text(graph, "gpu0", "gpu4"), "NVB 30 via gpu2")
      << "of equal paths, the one through the lowest number wins";
  graph.links[5].gbytes_per_s = 20;
  EXPECT_EQ(path_text(graph, "gpu0", "gpu4"), "NVB 30 via gpu3");
}

TEST(Graph, AWideBeginningIsNotLostToANearOne) {
  // From the GPU to the CPU there is a narrow path with one PCI switch, and a wide path with two. Beyond the CPU
  // both paths have the type PHB, so the wide one must win.
  Graph graph;
  const std::uint32_t cpu = add(graph, NodeKind::kCpu, "cpu0");
  const std::uint32_t near = add(graph, NodeKind::kPci, "near"), far = add(graph, NodeKind::kPci, "far");
  const std::uint32_t hub = add(graph, NodeKind::kPci, "hub");
  const std::uint32_t gpu = add(graph, NodeKind::kGpu, "gpu0"), other = add(graph, NodeKind::kNic, "nic0");
  graph.links = {{near, gpu, LinkKind::kPci, 1, 5}, {hub, near, LinkKind::kPci, 1, 5},
                 {far, gpu, LinkKind::kPci, 1, 20}, {hub, far, LinkKind::kPci, 1, 20},
                 {cpu, hub, LinkKind::kPci, 1, 20}, {cpu, other, LinkKind::kPci, 1, 20}};
  EXPECT_EQ(path_text(graph, "gpu0", "nic0"), "PHB 20 via far, hub, cpu0");
}

TEST(Graph, ChipToChip) {
  Graph graph;
  const std::uint32_t cpu0 = add(graph, NodeKind::kCpu, "cpu0", 0), cpu1 = add(graph, NodeKind::kCpu, "cpu1", 1);
  const std::uint32_t gpu0 = add(graph, NodeKind::kGpu, "gpu0", 0), gpu1 = add(graph, NodeKind::kGpu, "gpu1", 1);
  const std::uint32_t pci = add(graph, NodeKind::kPci, "pci"), nic = add(graph, NodeKind::kNic, "nic0", 0);
  const std::uint32_t gpu2 = add(graph, NodeKind::kGpu, "gpu2", 2);
  graph.links = {{cpu0, gpu0, LinkKind::kC2c, 1, 300}, {cpu1, gpu1, LinkKind::kC2c, 1, 300},
                 {cpu0, cpu1, LinkKind::kCpu, 1, 100}, {cpu0, pci, LinkKind::kPci, 1, 48},
                 {pci, nic, LinkKind::kPci, 1, 48},    {pci, gpu2, LinkKind::kPci, 1, 48}};
  EXPECT_EQ(path_text(graph, "gpu0", "cpu0"), "C2C 300");
  EXPECT_EQ(path_text(graph, "gpu0", "nic0"), "P2C 48 via cpu0, pci");
  EXPECT_EQ(path_text(graph, "nic0", "gpu0"), "P2C 48 via pci, cpu0");
  EXPECT_EQ(path_text(graph, "gpu0", "gpu2"), "PHB 48 via cpu0, pci");
  EXPECT_EQ(path_text(graph, "gpu2", "gpu0"), "PHB 48 via pci, cpu0");
  EXPECT_EQ(path_text(graph, "gpu0", "gpu1"), "SYS 100 via cpu0, cpu1");
  EXPECT_EQ(path_text(graph, "gpu1", "nic0"), "SYS 48 via cpu1, cpu0, pci");
}

TEST(Graph, NodesComeInTheOrderOfTheirNumbers) {
  Graph graph;
  add(graph, NodeKind::kGpu, "b", 7);
  add(graph, NodeKind::kNic, "n", 1);
  add(graph, NodeKind::kGpu, "a", 2);
  add(graph, NodeKind::kGpu, "c", 7);
  EXPECT_EQ(nodes_of(graph, NodeKind::kGpu), (std::vector<std::uint32_t>{2, 0, 3}));
  EXPECT_EQ(nodes_of(graph, NodeKind::kNic), (std::vector<std::uint32_t>{1}));
  EXPECT_TRUE(nodes_of(graph, NodeKind::kCpu).empty());
}

TEST(Graph, NamesAreThoseOfTheField) {
  EXPECT_EQ(to_string(PathType::kLoc), "LOC");
  EXPECT_EQ(to_string(PathType::kPxn), "PXN");
  EXPECT_EQ(to_string(PathType::kDis), "DIS");
  EXPECT_EQ(to_string(NodeKind::kNvSwitch), "nvswitch");
  EXPECT_EQ(to_string(LinkKind::kXgmi), "xGMI");
}

// A random machine: a PCI tree below one to three CPUs, with random NVLinks and some chip-to-chip links.
Graph random_machine(std::mt19937_64& random) {
  const auto pick = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
  const double widths[] = {6, 12, 24, 48};
  Graph graph;
  const std::uint32_t cpus = 1 + pick(3), switches = pick(5), devices = 2 + pick(6);
  for (std::uint32_t i = 0; i < cpus; ++i) add(graph, NodeKind::kCpu, "cpu", static_cast<std::int32_t>(i));
  for (std::uint32_t i = 1; i < cpus; ++i) graph.links.push_back({pick(i), i, LinkKind::kCpu, 1, widths[pick(4)]});
  for (std::uint32_t i = 0; i < switches + devices; ++i) {
    const NodeKind kind = i < switches ? NodeKind::kPci : pick(3) == 0 ? NodeKind::kNic : NodeKind::kGpu;
    const std::uint32_t made = add(graph, kind, "device", static_cast<std::int32_t>(i));
    const std::uint32_t parent = pick(cpus + std::min(i, switches));
    const bool c2c = kind == NodeKind::kGpu && parent < cpus && pick(2) == 0;
    graph.links.push_back({parent, made, c2c ? LinkKind::kC2c : LinkKind::kPci, 1, widths[pick(4)]});
  }
  const std::vector<std::uint32_t> gpus = nodes_of(graph, NodeKind::kGpu);
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    for (std::size_t b = a + 1; b < gpus.size(); ++b) {
      if (pick(3) == 0) graph.links.push_back({gpus[a], gpus[b], LinkKind::kNvLink, 1, widths[pick(4)]});
    }
  }
  return graph;
}

TEST(Graph, PathsAreAsTheyAreToldAndAlikeThereAndBack) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = random_machine(random);
    std::vector<std::vector<Path>> all;
    for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) all.push_back(paths_from(graph, i));
    for (std::uint32_t a = 0; a < graph.nodes.size(); ++a) {
      for (std::uint32_t b = 0; b < graph.nodes.size(); ++b) {
        const Path& there = all[a][b];
        ASSERT_EQ(there.type, all[b][a].type) << a << " to " << b;
        ASSERT_EQ(there.gbytes_per_s, all[b][a].gbytes_per_s) << a << " to " << b;
        ASSERT_EQ(there.hops.size(), all[b][a].hops.size()) << a << " to " << b;
        if (a == b) continue;
        if (there.type == PathType::kDis) {
          ASSERT_TRUE(there.hops.empty());
          continue;
        }
        double narrowest = std::numeric_limits<double>::infinity();
        std::uint32_t at = a;
        std::set<std::uint32_t> passed{a};
        for (const Hop& hop : there.hops) {
          const GraphLink& link = graph.links[hop.link];
          ASSERT_EQ(hop.reversed ? link.to : link.from, at);
          at = hop.reversed ? link.from : link.to;
          ASSERT_TRUE(passed.insert(at).second) << "a path must not pass a node twice";
          narrowest = std::min(narrowest, link.gbytes_per_s);
        }
        ASSERT_EQ(at, b);
        ASSERT_EQ(narrowest, there.gbytes_per_s);
      }
    }
  }
}

}  // namespace
}  // namespace tutti
