// Tests that the predefined machines have the parts, paths and bandwidths of the real machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "topology/cluster.h"

namespace tutti {
namespace {

Cluster shape(const ShapeOptions& options) {
  Result<Cluster> made = make_shape(options);
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(made).value();
}

struct Expected {
  std::string_view name;
  std::size_t cpus, gpus, nics;
  PathType gpu_to_gpu;  // from the first GPU to the last
  double gpu_to_gpu_gbytes_per_s;
  PathType gpu_to_nic;  // from the last GPU to the last NIC
  double gpu_to_nic_gbytes_per_s;
  double nic_megabits_per_s;
};

TEST(Shapes, HaveThePartsAndPathsThatTheyAreKnownFor) {
  const Expected all[] = {
      {"dgx-1v", 2, 8, 4, PathType::kNvb, 40, PathType::kPix, 12, 100'000},
      {"dgx-a100", 2, 8, 8, PathType::kNvl, 240, PathType::kPix, 24, 200'000},
      {"dgx-h100", 2, 8, 8, PathType::kNvl, 18 * 20.6, PathType::kPix, 48, 400'000},
      {"dgx-b200", 2, 8, 8, PathType::kNvl, 18 * 40.1, PathType::kPix, 48, 400'000},
      {"hgx-h100", 2, 8, 8, PathType::kNvl, 18 * 20.6, PathType::kPix, 48, 400'000},
      {"pcie-8gpu", 2, 8, 2, PathType::kSys, 16, PathType::kPix, 24, 200'000},
      {"nvlink-4gpu", 2, 4, 1, PathType::kSys, 16, PathType::kSys, 16, 200'000},
      {"cpu-1socket", 1, 0, 1, {}, 0, {}, 0, 100'000},
      {"cpu-2socket", 2, 0, 1, {}, 0, {}, 0, 100'000},
  };
  ASSERT_EQ(std::size(all), shape_names().size());
  for (const Expected& expected : all) {
    SCOPED_TRACE(expected.name);
    const Cluster cluster = shape({.name = std::string(expected.name)});
    const Graph& graph = cluster.machine;
    const auto gpus = nodes_of(graph, NodeKind::kGpu), nics = nodes_of(graph, NodeKind::kNic);
    EXPECT_EQ(nodes_of(graph, NodeKind::kCpu).size(), expected.cpus);
    EXPECT_EQ(gpus.size(), expected.gpus);
    ASSERT_EQ(nics.size(), expected.nics);
    EXPECT_EQ(graph.nodes[nics[0]].nic.megabits_per_s, expected.nic_megabits_per_s);
    EXPECT_EQ(cluster.ranks_per_machine, expected.gpus > 0 ? expected.gpus : expected.cpus);
    EXPECT_EQ(cluster.ranks(), cluster.ranks_per_machine);
    EXPECT_EQ(cluster.fabric.kind, FabricKind::kNone);
    if (gpus.empty()) continue;
    const std::vector<Path> first = paths_from(graph, gpus.front()), last = paths_from(graph, gpus.back());
    EXPECT_EQ(first[gpus.back()].type, expected.gpu_to_gpu);
    EXPECT_DOUBLE_EQ(first[gpus.back()].gbytes_per_s, expected.gpu_to_gpu_gbytes_per_s);
    EXPECT_EQ(last[nics.back()].type, expected.gpu_to_nic);
    EXPECT_DOUBLE_EQ(last[nics.back()].gbytes_per_s, expected.gpu_to_nic_gbytes_per_s);
  }
}

TEST(Shapes, EveryPartIsThereOnceAndReachesEveryOther) {
  for (const std::string& name : shape_names()) {
    for (std::uint32_t nics : {0u, 1u, 3u, 16u}) {
      SCOPED_TRACE(name + " with NICs: " + std::to_string(nics));
      const Graph graph = shape({.name = name, .nics = nics}).machine;
      EXPECT_EQ(graph.name, name);
      std::set<std::string> names, buses;
      for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
        const GraphNode& node = graph.nodes[i];
        EXPECT_TRUE(names.insert(node.name).second) << node.name;
        const bool device = node.kind != NodeKind::kCpu && node.kind != NodeKind::kNvSwitch;
        EXPECT_TRUE(!device || buses.insert(node.pci.bus_id).second) << node.pci.bus_id;
        if (node.kind == NodeKind::kNvSwitch) continue;  // has no path to CPUs
        const std::vector<Path> paths = paths_from(graph, i);
        for (std::size_t to = 0; to < paths.size(); ++to) {
          if (graph.nodes[to].kind == NodeKind::kNvSwitch) continue;
          EXPECT_NE(paths[to].type, PathType::kDis) << node.name << " to " << graph.nodes[to].name;
        }
      }
      EXPECT_TRUE(nics == 0 || nodes_of(graph, NodeKind::kNic).size() == nics);
    }
  }
}

TEST(Shapes, NicsAreDealtEvenlyToTheGpus) {
  for (std::uint32_t nics : {1u, 2u, 4u, 8u, 16u}) {
    const Graph graph = shape({.name = "dgx-h100", .nics = nics}).machine;
    const auto all = nodes_of(graph, NodeKind::kNic);
    std::vector<std::size_t> near;  // for each GPU: the number of NICs at its switch
    for (std::uint32_t gpu : nodes_of(graph, NodeKind::kGpu)) {
      const std::vector<Path> paths = paths_from(graph, gpu);
      near.push_back(static_cast<std::size_t>(
          std::count_if(all.begin(), all.end(), [&](std::uint32_t nic) { return paths[nic].type == PathType::kPix; })));
    }
    EXPECT_EQ(*std::max_element(near.begin(), near.end()), std::max(1u, nics / 8)) << nics;
    EXPECT_EQ(static_cast<std::uint32_t>(std::count(near.begin(), near.end(), std::max(1u, nics / 8))),
              std::min(nics, 8u));
  }
}

TEST(Shapes, TheCubeMeshGivesEveryGpuSixLinks) {
  const Graph graph = shape({.name = "dgx-1v"}).machine;
  std::vector<std::uint32_t> count(graph.nodes.size());
  for (const GraphLink& link : graph.links) {
    if (link.kind != LinkKind::kNvLink) continue;
    EXPECT_DOUBLE_EQ(link.gbytes_per_s, 20.0 * link.count);
    count[link.from] += link.count;
    count[link.to] += link.count;
  }
  for (std::uint32_t gpu : nodes_of(graph, NodeKind::kGpu)) EXPECT_EQ(count[gpu], 6u);
}

TEST(Shapes, FabricsAreWhatWasAskedFor) {
  Cluster cluster = shape({.name = "dgx-h100", .machines = 64});
  EXPECT_EQ(cluster.fabric.kind, FabricKind::kRailOptimised) << "the default of this machine";
  EXPECT_EQ(cluster.fabric.machines_per_leaf, 32u);
  EXPECT_EQ(cluster.fabric.oversubscription, 1);
  EXPECT_EQ(cluster.ranks(), 512u);
  cluster = shape({.name = "cpu-2socket", .machines = 50'000, .fabric = "fat-tree", .oversubscription = 4});
  EXPECT_EQ(cluster.fabric.kind, FabricKind::kFatTree);
  EXPECT_EQ(cluster.fabric.oversubscription, 4);
  EXPECT_EQ(cluster.ranks(), 100'000u);
  cluster = shape({.name = "pcie-8gpu", .machines = 2, .fabric = "rail-optimised", .machines_per_leaf = 2});
  EXPECT_EQ(cluster.fabric.kind, FabricKind::kRailOptimised);
  EXPECT_EQ(cluster.fabric.machines_per_leaf, 2u);
  EXPECT_EQ(shape({.name = "cpu-1socket", .ranks = 48}).ranks(), 48u);
  EXPECT_EQ(shape({.name = "dgx-a100", .ranks = 8}).ranks(), 8u);
}

TEST(Shapes, RefuseWhatCannotBeWithTheChoicesThatThereAre) {
  const std::pair<ShapeOptions, std::string_view> all[] = {
      {{.name = "dgx-z"}, "hgx-h100"},
      {{.name = "dgx-h100", .machines = 0}, "1 to 1048576"},
      {{.name = "dgx-h100", .machines = kMaxMachines + 1}, "1 to 1048576"},
      {{.name = "dgx-h100", .nics = 65}, "at most 64"},
      {{.name = "dgx-h100", .ranks = 4}, "has 8 GPUs"},
      {{.name = "cpu-1socket", .ranks = 1025}, "at most 1024"},
      {{.name = "dgx-h100", .machines = 2, .fabric = "torus"}, "rail-optimised"},
      {{.name = "dgx-h100", .machines = 2, .oversubscription = 0.5}, "at least 1"},
      {{.name = "dgx-h100", .machines = 2, .oversubscription = std::numeric_limits<double>::quiet_NaN()}, "at least 1"},
      {{.name = "dgx-h100", .machines = 2, .machines_per_leaf = kMaxMachines + 1}, "leaf"},
  };
  for (const auto& [options, words] : all) {
    const Result<Cluster> made = make_shape(options);
    ASSERT_FALSE(made.ok()) << words;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(made.error().message.find(words), std::string::npos) << made.error().message;
  }
}

}  // namespace
}  // namespace tutti
