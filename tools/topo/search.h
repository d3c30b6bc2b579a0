// find_routes(): finds rings and trees through the GPUs of a machine that together use as much of its bandwidth as
// possible. Only `tutti topo` uses it, to show the possibilities of a machine. Tutti's own channels follow the order
// of the ranks. It is a pure function: the same graph always gives the same result, and any thread may call it.
// docs/decisions/0017-search.md describes the method.
//
// Rings. A ring visits every GPU once, and neighbours are connected by their nearest path (paths_from). With several
// machines, a ring enters each machine by a NIC and leaves it by a NIC. Both are the same NIC, so that the ring stays
// on its rail, unless two different NICs increase the bandwidth by more than `crossing_gain`. If a GPU is far from the
// NIC, it sends through a GPU that is nearer to the NIC and has NVLink (PXN). The search is for a set of at most
// max_rings rings whose load on each link and port, in each direction, does not exceed its capacity. All rings have
// the same bandwidth, because channels share a message evenly. Of all such sets, the result is the one with the most
// bandwidth, then the one with the fewest rings, then the first one found: near neighbours and low numbers are tried
// first. Up to `nearness` of the bandwidth is given up if the worst path then has a nearer type. There are no built-in
// patterns. Routes::bottlenecks proves that no rings, with equal bandwidths or not, have more than
// ring_bound_gbytes_per_s together.
//
// Trees. The part of a tree inside one machine is a chain: it begins at the GPU next to the NIC and visits every GPU.
// Sums move towards that GPU while results move away from it, so a chain loads its links and its NIC in both
// directions. It is a chain, and not a tree with branches, because a GPU that adds k inputs needs k times the incoming
// bandwidth. The algorithm decides which machine is the parent of which one (for example in a double binary tree),
// because that depends only on the number of machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/graph.h"

namespace tutti {

struct SearchOptions {
  bool across_machines = false;  // one of several equal machines that are connected by their NICs
  std::uint32_t max_rings = 16;  // also the limit for trees; 1 .. 64
  double crossing_gain = 0.1;
  // Fraction of the bandwidth that may be given up for nearer paths; 0: path types do not matter.
  double nearness = 0.05;
  // Limit of steps for one linear program; there is one for each limit on path types. The searches for rings, for
  // rings that cross rails, and for trees may each take 6 times as many together. If the steps are used up, the best
  // result so far is returned.
  std::uint64_t max_steps = 1u << 24;

  bool operator==(const SearchOptions&) const = default;
};

struct Ring {
  // Indices into nodes_of(kGpu), or into nodes_of(kCpu) if there are no GPUs.
  std::vector<std::uint32_t> gpus{};
  std::optional<std::uint32_t> nic_in{};  // indices into nodes_of(kNic); nothing within one machine
  std::optional<std::uint32_t> nic_out{};
  double gbytes_per_s = 0;
  PathType worst_path = PathType::kLoc;  // between neighbours in the ring
  PathType worst_nic_path = PathType::kLoc;

  bool operator==(const Ring&) const = default;
};

struct Tree {
  std::vector<std::uint32_t> chain{};  // indices as in Ring::gpus, from the head
  std::optional<std::uint32_t> nic{};
  double gbytes_per_s = 0;
  PathType worst_path = PathType::kLoc;
  PathType worst_nic_path = PathType::kLoc;

  bool operator==(const Tree&) const = default;
};

// A resource that limits the rings: a link in one direction, or the port of a NIC.
struct Bottleneck {
  std::string name{};  // for example "gpu0 -> nvswitch" or "mlx5_0 in"
  // The link and its direction. For a port, only `reversed` is set; it means incoming.
  Hop hop{};
  std::optional<std::uint32_t> nic{};  // set for a port: index into nodes_of(kNic)
  // For every possible ring, the sum of the prices of all resources that it uses is at least 1. The sum of capacity
  // times price over all bottlenecks is ring_bound_gbytes_per_s.
  double price = 0;

  bool operator==(const Bottleneck&) const = default;
};

enum class WarningKind : std::uint8_t {
  // There is no ring. The result contains one ring in the order of the numbers, with unknown bandwidth.
  kDisconnected,
  kNoNic,      // routes across machines were requested, but there is no NIC
  kNotNvLink,  // there are NVLinks, but no ring uses only them
  kCrossing,   // rings cross rails
  // The steps were used up, or there are too many GPUs, so better routes may exist.
  kUnproven,
  // The bandwidth is less than 90% of the bound, which more rings or rings of unequal bandwidths might reach.
  kLeftOut,
};

struct Warning {
  WarningKind kind = WarningKind::kUnproven;
  std::string message{};  // includes the reason

  bool operator==(const Warning&) const = default;
};

struct Routes {
  std::vector<Ring> rings{};
  std::vector<Tree> trees{};
  double ring_gbytes_per_s = 0;        // all rings together
  double ring_bound_gbytes_per_s = 0;  // upper bound for any set of rings; infinite: unknown
  double tree_gbytes_per_s = 0;
  double tree_bound_gbytes_per_s = 0;
  // Bottlenecks of the rings, the one with the largest part of the bound first.
  std::vector<Bottleneck> bottlenecks{};
  std::vector<Warning> warnings{};  // for the user
  std::uint64_t steps = 0;          // steps that the search took

  bool operator==(const Routes&) const = default;
};

// Always succeeds. A machine with no GPU or one GPU has no routes within itself; this is not a warning.
Routes find_routes(const Graph& graph, const SearchOptions& options);

}  // namespace tutti
