// Tests of the search for rings and trees: a comparison with exhaustive search on small random machines, a check of
// its proof of optimality over all possible rings, and machines with known results.
#include "tools/topo/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "topology/cluster.h"

namespace tutti {
namespace {

// How much a route loads each resource: (whether it is a NIC port, index of the link or NIC, reversed) -> number of
// times.
using Resource = std::tuple<bool, std::uint32_t, bool>;
using Loads = std::map<Resource, double>;

// An independent implementation, which enumerates all rings and chains and calculates how they load the resources.
class ExhaustiveSearch {
 public:
  explicit ExhaustiveSearch(const Graph& graph) : graph_(graph), gpus_(nodes_of(graph, NodeKind::kGpu)) {
    for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) paths_.push_back(paths_from(graph, i));
    nics_ = nodes_of(graph, NodeKind::kNic);
  }

  double capacity(const Resource& resource) const {
    const auto [port, index, reversed] = resource;
    return port ? graph_.nodes[nics_[index]].nic.megabits_per_s / 8000 : graph_.links[index].gbytes_per_s;
  }

  bool add_path(std::uint32_t from, std::uint32_t to, Loads& loads) const {
    const Path& path = paths_[from][to];
    for (const Hop& hop : path.hops) loads[{false, hop.link, hop.reversed}] += 1;
    return path.type != PathType::kDis;
  }

  // Adds the path to a NIC. If the direct path crosses a CPU, it goes through a GPU near the NIC that is reached by
  // NVLink.
  bool add_nic_path(std::uint32_t gpu, std::uint32_t nic, Loads& loads) const {
    const std::uint32_t target = nics_[nic];
    loads[{true, nic, false}] += 1;
    std::uint32_t relay = gpu;
    if (paths_[gpu][target].type > PathType::kPxn) {
      for (std::uint32_t other : gpus_) {
        const PathType type = paths_[other][target].type;
        if (paths_[gpu][other].type != PathType::kNvl || type > PathType::kP2c) continue;
        if (relay == gpu || type < paths_[relay][target].type) relay = other;
      }
    }
    return (relay == gpu || add_path(gpu, relay, loads)) && add_path(relay, target, loads);
  }
  bool enter(std::uint32_t nic, std::uint32_t gpu, Loads& loads) const {
    loads[{true, nic, true}] += 1;
    return add_path(nics_[nic], gpu, loads);
  }

  bool load(const Ring& ring, Loads& loads) const {
    bool whole = true;
    for (std::size_t i = 0; i + 1 < ring.gpus.size(); ++i) {
      whole &= add_path(gpus_[ring.gpus[i]], gpus_[ring.gpus[i + 1]], loads);
    }
    if (!ring.nic_in) return whole && add_path(gpus_[ring.gpus.back()], gpus_[ring.gpus.front()], loads);
    return whole && enter(*ring.nic_in, gpus_[ring.gpus.front()], loads) &&
           add_nic_path(gpus_[ring.gpus.back()], *ring.nic_out, loads);
  }
  bool load(const Tree& tree, Loads& loads) const {
    bool whole = true;
    for (std::size_t i = 0; i + 1 < tree.chain.size(); ++i) {
      whole &= add_path(gpus_[tree.chain[i]], gpus_[tree.chain[i + 1]], loads);
      whole &= add_path(gpus_[tree.chain[i + 1]], gpus_[tree.chain[i]], loads);
    }
    if (!tree.nic) return whole;
    return whole && enter(*tree.nic, gpus_[tree.chain.front()], loads) &&
           add_nic_path(gpus_[tree.chain.front()], *tree.nic, loads);
  }

  enum class Rails { kNone, kKept, kCrossed };

  std::vector<Loads> all_rings(Rails rails) const {
    std::vector<Loads> all;
    std::vector<std::uint32_t> order(gpus_.size());
    std::iota(order.begin(), order.end(), 0u);
    do {
      if (rails == Rails::kNone) {
        if (order[0] == 0) add(Ring{.gpus = order}, all);
        continue;
      }
      for (std::uint32_t in = 0; in < nics_.size(); ++in) {
        for (std::uint32_t out = 0; out < nics_.size(); ++out) {
          if (in == out || rails == Rails::kCrossed) add(Ring{.gpus = order, .nic_in = in, .nic_out = out}, all);
        }
      }
    } while (std::next_permutation(order.begin(), order.end()));
    return all;
  }

  std::vector<Loads> all_trees(Rails rails) const {
    std::vector<Loads> all;
    std::vector<std::uint32_t> order(gpus_.size());
    std::iota(order.begin(), order.end(), 0u);
    do {
      if (rails == Rails::kNone) add(Tree{.chain = order}, all);
      if (rails == Rails::kNone) continue;
      for (std::uint32_t nic = 0; nic < nics_.size(); ++nic) add(Tree{.chain = order, .nic = nic}, all);
    } while (std::next_permutation(order.begin(), order.end()));
    return all;
  }

  struct Best {
    double total = 0;
    std::size_t count = 0;
  };
  // The best of all multisets of at most `most` routes.
  Best best(std::vector<Loads> all, std::size_t most) const {
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    Best found;
    Loads sum;
    extend(all, 0, 0, most, sum, found);
    return found;
  }

 private:
  template <class Route>
  void add(const Route& route, std::vector<Loads>& all) const {
    Loads loads;
    if (load(route, loads)) all.push_back(std::move(loads));
  }

  void extend(const std::vector<Loads>& all, std::size_t from, std::size_t count, std::size_t most, const Loads& sum,
              Best& found) const {
    if (count > 0) {
      double share = std::numeric_limits<double>::infinity();
      for (const auto& [resource, times] : sum) share = std::min(share, capacity(resource) / times);
      const double total = share * static_cast<double>(count);
      const bool better = total > found.total * (1 + 1e-6);
      if (better || (total > found.total * (1 - 1e-6) && count < found.count)) found = {total, count};
    }
    if (count == most) return;
    for (std::size_t i = from; i < all.size(); ++i) {
      Loads more = sum;
      for (const auto& [resource, times] : all[i]) more[resource] += times;
      extend(all, i, count + 1, most, more, found);
    }
  }

  const Graph& graph_;
  std::vector<std::uint32_t> gpus_, nics_;
  std::vector<std::vector<Path>> paths_;
};

// GPUs below PCI switches, which are below one or two CPUs, with random NVLinks and the given number of NICs.
Graph random_machine(std::mt19937_64& random, std::uint32_t gpus, std::uint32_t nics) {
  const auto pick = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
  const double widths[] = {6, 10, 12, 20, 24, 48};
  Graph graph;
  const auto add = [&](NodeKind kind, std::uint32_t number) {
    GraphNode node;
    node.kind = kind;
    node.name = std::string(to_string(kind)) + std::to_string(number);
    node.numa = node.gpu.device = node.nic.device = static_cast<std::int32_t>(number);
    node.nic.megabits_per_s = 8000 * widths[pick(6)];
    graph.nodes.push_back(std::move(node));
    return static_cast<std::uint32_t>(graph.nodes.size() - 1);
  };
  const std::uint32_t cpus = 1 + pick(2), switches = pick(4);
  for (std::uint32_t i = 0; i < cpus; ++i) add(NodeKind::kCpu, i);
  if (cpus == 2) graph.links.push_back({0, 1, LinkKind::kCpu, 1, widths[pick(6)]});
  for (std::uint32_t i = 0; i < switches; ++i) {
    const std::uint32_t parent = pick(cpus + i);
    graph.links.push_back({parent, add(NodeKind::kPci, i), LinkKind::kPci, 1, widths[pick(6)]});
  }
  const auto attach = [&](NodeKind kind, std::uint32_t number) {
    graph.links.push_back({pick(cpus + switches), add(kind, number), LinkKind::kPci, 1, widths[pick(6)]});
  };
  for (std::uint32_t i = 0; i < gpus; ++i) attach(NodeKind::kGpu, i);
  const std::uint32_t first = cpus + switches, density = pick(4);
  for (std::uint32_t a = 0; a < gpus; ++a) {
    for (std::uint32_t b = a + 1; b < gpus; ++b) {
      if (pick(4) < density) graph.links.push_back({first + a, first + b, LinkKind::kNvLink, 1, widths[pick(6)]});
    }
  }
  for (std::uint32_t i = 0; i < nics; ++i) attach(NodeKind::kNic, i);
  return graph;
}

void expect_best(const ExhaustiveSearch::Best& best, double total, std::size_t count) {
  EXPECT_NEAR(total, best.total, 1e-5 * best.total);
  EXPECT_EQ(count, best.count);
}

TEST(Search, InOneMachineIsAsGoodAsTryingEverything) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto gpus = static_cast<std::uint32_t>(2 + seed % 5);  // 2 to 6
    const std::uint32_t most = gpus < 5 ? 4 : gpus == 5 ? 3 : 2;
    const Graph graph = random_machine(random, gpus, 0);
    const Routes routes = find_routes(graph, {.max_rings = most, .nearness = 0});
    const ExhaustiveSearch exhaustive(graph);
    expect_best(exhaustive.best(exhaustive.all_rings(ExhaustiveSearch::Rails::kNone), most), routes.ring_gbytes_per_s,
                routes.rings.size());
    if (gpus > 5) continue;  // 6 GPUs have 360 chains, which takes too long
    const std::size_t few = gpus < 5 ? 3 : 2;
    const Routes trees = find_routes(graph, {.max_rings = static_cast<std::uint32_t>(few), .nearness = 0});
    expect_best(exhaustive.best(exhaustive.all_trees(ExhaustiveSearch::Rails::kNone), few), trees.tree_gbytes_per_s,
                trees.trees.size());
  }
}

TEST(Search, AcrossMachinesIsAsGoodAsTryingEverything) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto gpus = static_cast<std::uint32_t>(1 + seed % 4);  // 1 to 4
    const auto nics = static_cast<std::uint32_t>(1 + random() % 3);
    const Graph graph = random_machine(random, gpus, nics);
    SearchOptions options{.across_machines = true, .max_rings = 2, .crossing_gain = 1e9, .nearness = 0};
    const Routes kept = find_routes(graph, options);
    const ExhaustiveSearch exhaustive(graph);
    expect_best(exhaustive.best(exhaustive.all_rings(ExhaustiveSearch::Rails::kKept), 2), kept.ring_gbytes_per_s,
                kept.rings.size());
    for (const Ring& ring : kept.rings) EXPECT_EQ(ring.nic_in, ring.nic_out);
    expect_best(exhaustive.best(exhaustive.all_trees(ExhaustiveSearch::Rails::kKept), 2), kept.tree_gbytes_per_s,
                kept.trees.size());
    options.crossing_gain = 0;
    const double crossed = find_routes(graph, options).ring_gbytes_per_s;
    const double best = exhaustive.best(exhaustive.all_rings(ExhaustiveSearch::Rails::kCrossed), 2).total;
    EXPECT_NEAR(crossed, best, 1e-5 * best);
  }
}

// Linear-programming duality: with the prices of the bottlenecks, every ring costs at least 1, and the total value
// of all capacities equals the bound. So no set of rings can exceed the bound.
void expect_proof(const Graph& graph, const Routes& routes, ExhaustiveSearch::Rails rails) {
  const ExhaustiveSearch exhaustive(graph);
  std::map<Resource, double> prices;
  double worth = 0;
  for (const Bottleneck& limit : routes.bottlenecks) {
    const Resource resource{limit.nic.has_value(), limit.nic.value_or(limit.hop.link), limit.hop.reversed};
    prices[resource] = limit.price;
    worth += limit.price * exhaustive.capacity(resource);
  }
  EXPECT_NEAR(worth, routes.ring_bound_gbytes_per_s, 1e-6 * worth);
  for (const Loads& loads : exhaustive.all_rings(rails)) {
    double cost = 0;
    for (const auto& [resource, times] : loads) cost += prices.contains(resource) ? prices[resource] * times : 0;
    ASSERT_GE(cost, 1 - 1e-6);
  }
}

TEST(Search, TheBoundIsProvenByThePricesOfTheBottlenecks) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = random_machine(random, static_cast<std::uint32_t>(3 + seed % 5), 2);  // 3 to 7 GPUs
    const Routes within = find_routes(graph, {});
    expect_proof(graph, within, ExhaustiveSearch::Rails::kNone);
    EXPECT_LE(within.ring_gbytes_per_s, within.ring_bound_gbytes_per_s * (1 + 1e-6));
    if (seed % 5 >= 3) continue;
    const Routes across = find_routes(graph, {.across_machines = true, .crossing_gain = 1e9});
    expect_proof(graph, across, ExhaustiveSearch::Rails::kKept);
  }
  const Graph mesh = make_shape({.name = "dgx-1v"})->machine;
  expect_proof(mesh, find_routes(mesh, {}), ExhaustiveSearch::Rails::kNone);
}

// Checks that no link carries more than its capacity, and that every route passes every GPU once.
void expect_sound(const Graph& graph, const Routes& routes) {
  const ExhaustiveSearch exhaustive(graph);
  const auto check = [&](const auto& all, auto order_of, double total) {
    Loads sum;
    double bandwidth = 0;
    for (const auto& route : all) {
      Loads loads;
      ASSERT_TRUE(exhaustive.load(route, loads));
      for (const auto& [resource, times] : loads) sum[resource] += times * route.gbytes_per_s;
      bandwidth += route.gbytes_per_s;
      EXPECT_EQ(route.gbytes_per_s, all[0].gbytes_per_s);
      std::vector<std::uint32_t> order = order_of(route);
      std::sort(order.begin(), order.end());
      for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
      EXPECT_EQ(order.size(), nodes_of(graph, NodeKind::kGpu).size());
    }
    EXPECT_NEAR(bandwidth, total, 1e-9 * total);
    for (const auto& [resource, load] : sum) EXPECT_LE(load, exhaustive.capacity(resource) * (1 + 1e-6));
  };
  check(
      routes.rings, [](const Ring& ring) { return ring.gpus; }, routes.ring_gbytes_per_s);
  check(
      routes.trees, [](const Tree& tree) { return tree.chain; }, routes.tree_gbytes_per_s);
}

TEST(Search, RoutesOfTheShapesAreSoundAndTheSameEveryTime) {
  for (const std::string& name : shape_names()) {
    for (const std::uint32_t nics : {0u, 1u, 3u, 4u, 8u}) {
      for (const bool across : {false, true}) {
        SCOPED_TRACE(name + " with NICs: " + std::to_string(nics));
        const Graph graph = make_shape({.name = name, .nics = nics})->machine;
        if (nodes_of(graph, NodeKind::kGpu).empty()) continue;
        const Routes routes = find_routes(graph, {.across_machines = across});
        expect_sound(graph, routes);
        EXPECT_EQ(routes, find_routes(graph, {.across_machines = across}));
      }
    }
  }
}

struct KnownMachine {
  std::string_view name;
  std::uint32_t nics;
  bool across;
  std::size_t rings;
  double ring_gbytes_per_s;
  PathType worst, worst_nic;
  std::size_t trees;
  double tree_gbytes_per_s;
};

TEST(Search, KnownMachinesHaveTheRingsThatTheyAreKnownFor) {
  const double hopper = 18 * 20.6, blackwell = 18 * 40.1;
  const PathType none = PathType::kLoc, nvl = PathType::kNvl, pix = PathType::kPix, sys = PathType::kSys;
  const KnownMachine all[] = {
      // The rings use all NVLinks of all GPUs in both directions: six rings over the single links of the cube mesh.
      {"dgx-1v", 0, false, 6, 120, nvl, none, 10, 200.0 / 3},
      // With an NVSwitch one ring can use the whole bandwidth. A chain passes each GPU in both directions, but its
      // two ends only once, which makes 14 passes in all.
      {"dgx-a100", 0, false, 1, 240, nvl, none, 4, 240 * 8 / 14.0},
      {"dgx-h100", 0, false, 1, hopper, nvl, none, 4, hopper * 8 / 14},
      {"dgx-b200", 0, false, 1, blackwell, nvl, none, 4, blackwell * 8 / 14},
      // Across machines each NIC has its own ring. If two GPUs share the NIC's switch, a ring enters through one of
      // them and leaves through the other. If there is one GPU, it also leaves through that GPU.
      {"dgx-1v", 0, true, 4, 48, nvl, pix, 4, 48},
      {"dgx-a100", 0, true, 8, 8 * 24, nvl, pix, 8, 240 * 8 / 14.0},
      {"dgx-h100", 0, true, 8, hopper, nvl, PathType::kPxn, 8, hopper * 8 / 14},
      {"dgx-b200", 0, true, 8, 8 * 48, nvl, PathType::kPxn, 8, 8 * 48},
      {"hgx-h100", 0, true, 8, 8 * 48, nvl, pix, 8, hopper * 8 / 14},
      {"hgx-h100", 1, true, 1, 48, nvl, pix, 1, 48},
      {"hgx-h100", 4, true, 4, 4 * 48, nvl, pix, 4, 4 * 48},
      // The ring crosses the link between the sockets once in each direction.
      {"pcie-8gpu", 0, false, 1, 16, sys, none, 4, 96 / 7.0},
      // Each of the two rings crosses that link once. The rings share the PCI switches of the NICs.
      {"pcie-8gpu", 0, true, 2, 24, sys, pix, 8, 12.8},
      {"nvlink-4gpu", 0, false, 1, 16, sys, none, 1, 16},
  };
  for (const KnownMachine& known : all) {
    SCOPED_TRACE(std::string(known.name) + (known.across ? " across machines" : ""));
    const Graph graph = make_shape({.name = std::string(known.name), .nics = known.nics})->machine;
    const Routes routes = find_routes(graph, {.across_machines = known.across});
    EXPECT_EQ(routes.rings.size(), known.rings);
    EXPECT_NEAR(routes.ring_gbytes_per_s, known.ring_gbytes_per_s, 1e-4);
    for (const Ring& ring : routes.rings) {
      EXPECT_LE(ring.worst_path, known.worst);
      EXPECT_LE(ring.worst_nic_path, known.worst_nic);
    }
    EXPECT_EQ(routes.trees.size(), known.trees);
    EXPECT_NEAR(routes.tree_gbytes_per_s, known.tree_gbytes_per_s, 1e-4);
  }
}

TEST(Search, KeepsRailsOnAnNvSwitchMachineInMilliseconds) {
  for (const std::string_view name : {"dgx-a100", "dgx-h100", "dgx-b200", "hgx-h100"}) {
    const Graph graph = make_shape({.name = std::string(name)})->machine;
    const auto begin = std::chrono::steady_clock::now();
    const Routes routes = find_routes(graph, {.across_machines = true});
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::printf("%s: %llu steps, %.1f ms\n", std::string(name).c_str(), static_cast<unsigned long long>(routes.steps),
                took.count());
    EXPECT_LE(routes.steps, 1'500'000u);
    EXPECT_TRUE(routes.warnings.empty());
    std::vector<std::uint32_t> rails;
    for (const Ring& ring : routes.rings) {
      EXPECT_EQ(ring.nic_in, ring.nic_out);
      rails.push_back(*ring.nic_in);
    }
    EXPECT_EQ(rails, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
}

Graph mesh_of(std::uint32_t gpus, double gbytes_per_s) {
  Graph graph;
  for (std::uint32_t i = 0; i < gpus; ++i) {
    GraphNode node;
    node.kind = NodeKind::kGpu;
    node.name = "gpu" + std::to_string(i);
    node.gpu.device = static_cast<std::int32_t>(i);
    graph.nodes.push_back(std::move(node));
    for (std::uint32_t other = 0; other < i; ++other) {
      graph.links.push_back({other, i, LinkKind::kXgmi, 1, gbytes_per_s});
    }
  }
  return graph;
}

TEST(Search, AMeshOfAllPairsIsUsedWhole) {
  for (std::uint32_t gpus = 3; gpus <= 8; ++gpus) {
    SCOPED_TRACE(gpus);
    const Graph graph = mesh_of(gpus, 50);
    const Routes routes = find_routes(graph, {});
    expect_sound(graph, routes);
    // With four or six GPUs, the links cannot be divided into rings that use each direction once, so the search uses
    // twice as many rings of half the bandwidth.
    const std::uint32_t rings = gpus == 4 || gpus == 6 ? 2 * (gpus - 1) : gpus - 1;
    EXPECT_EQ(routes.rings.size(), rings);
    EXPECT_NEAR(routes.ring_gbytes_per_s, 50 * (gpus - 1), 1e-4);
  }
}

const Warning* warning(const Routes& routes, WarningKind kind) {
  const auto found = std::find_if(routes.warnings.begin(), routes.warnings.end(),
                                  [kind](const Warning& each) { return each.kind == kind; });
  return found == routes.warnings.end() ? nullptr : &*found;
}

void expect_warning(const Routes& routes, WarningKind kind, std::string_view words) {
  const Warning* const found = warning(routes, kind);
  ASSERT_NE(found, nullptr) << words;
  EXPECT_NE(found->message.find(words), std::string::npos) << found->message;
}

TEST(Search, SaysLoudlyWhyItFallsBack) {
  Graph parted = mesh_of(4, 50);
  std::erase_if(parted.links, [](const GraphLink& link) { return link.to == 3; });
  const Routes routes = find_routes(parted, {});
  expect_warning(routes, WarningKind::kDisconnected, "gpu3 does not reach gpu2");
  ASSERT_EQ(routes.rings.size(), 1u);
  EXPECT_EQ(routes.rings[0].gpus, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(routes.rings[0].gbytes_per_s, 0);
  EXPECT_TRUE(routes.trees.empty());

  expect_warning(find_routes(mesh_of(4, 50), {.across_machines = true}), WarningKind::kNoNic, "no NIC");
  const Graph pairs = make_shape({.name = "nvlink-4gpu"})->machine;
  expect_warning(find_routes(pairs, {}), WarningKind::kNotNvLink, "gpu1 to gpu2 goes by SYS");
  const Graph box = make_shape({.name = "pcie-8gpu"})->machine;
  expect_warning(find_routes(box, {.across_machines = true}), WarningKind::kCrossing, "24 GB/s, where 16");
  EXPECT_EQ(warning(find_routes(box, {}), WarningKind::kNotNvLink), nullptr) << "the machine has no NVLink";
  const Graph cube = make_shape({.name = "dgx-1v"})->machine;
  expect_warning(find_routes(cube, {.max_rings = 1}), WarningKind::kLeftOut, "up to 120");
  expect_warning(find_routes(mesh_of(17, 50), {}), WarningKind::kUnproven, "17 GPUs");
}

TEST(Search, AHopelesslyBoundedSearchStillFindsARing) {
  const Graph cube = make_shape({.name = "dgx-1v"})->machine;
  const Routes routes = find_routes(cube, {.max_steps = 0});
  expect_sound(cube, routes);
  EXPECT_GE(routes.ring_gbytes_per_s, 20);
  EXPECT_GE(routes.tree_gbytes_per_s, 20);
  EXPECT_LE(routes.steps, 4'000'000u);
}

TEST(Search, AMachineWithoutNeighboursHasNoRoutes) {
  EXPECT_EQ(find_routes({}, {}), Routes{});
  EXPECT_EQ(find_routes(mesh_of(1, 50), {}), Routes{});
  const Routes sockets = find_routes(make_shape({.name = "cpu-2socket"})->machine, {});
  ASSERT_EQ(sockets.rings.size(), 1u);
  EXPECT_EQ(sockets.ring_gbytes_per_s, 22) << "without GPUs, the routes connect the CPUs";
}

}  // namespace
}  // namespace tutti
