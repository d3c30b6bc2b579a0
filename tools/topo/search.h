// Finds rings and trees through the GPUs of a machine that together use as much of its bandwidth as possible. Only
// `tutti topo` uses it, to show what a machine could do. Tutti's own channels follow the order of the ranks. A pure
// function: the same graph always gives the same answer, and any thread may call it. The method is described in
// docs/decisions/0017-search.md.
//
// Rings. A ring passes every GPU once, and neighbours are joined by their nearest path (paths_from). On several
// machines a ring enters each machine by a NIC and leaves it by a NIC. Both are the same NIC (the ring stays on its
// rail), unless two different ones give more than `crossing_gain` more bandwidth. If a GPU is far from the NIC, it
// sends through a GPU that is nearer to the NIC and has NVLink (PXN).
// A set of at most max_rings rings is sought whose load on each link and port, in each direction, is at most what that
// carries. All rings have the same bandwidth, because channels share a message evenly. Among all such sets, the one
// with the most bandwidth is taken, then the one with the fewest rings, then the first one found: near neighbours and
// low numbers are tried first. Up to `nearness` of the bandwidth is given up if the worst path becomes of a nearer
// type. No patterns are built in. Routes::bottlenecks proves that no rings, with equal bandwidths or not, have more
// than ring_bound_gbytes_per_s together.
//
// Trees. The part of a tree inside one machine is a chain: it begins at the GPU next to the NIC and passes every GPU.
// Sums move towards that GPU while results move away from it, so a chain loads its links and its NIC in both
// directions. It is a chain and not a bush, because a GPU that adds k inputs needs k times the incoming bandwidth.
// Which machine is whose parent depends only on the number of machines, so the algorithm decides that (for example a
// double binary tree).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/graph.h"

namespace tutti {

struct SearchOptions {
  bool across_machines = false;  // one machine of several alike, joined by the NICs
  std::uint32_t max_rings = 16;  // and trees; 1 .. 64
  double crossing_gain = 0.1;
  double nearness = 0.05;  // part of the bandwidth that may be given up for nearer paths; 0: their types don't matter
  // Of a linear program, of which there is one for each kind of paths; those of rings, of rings that cross and of trees
  // have 6 times as many together. What is found then is the answer.
  std::uint64_t max_steps = 1u << 24;

  bool operator==(const SearchOptions&) const = default;
};

struct Ring {
  std::vector<std::uint32_t> gpus{};      // indices into nodes_of(kGpu), or of kCpu where there are no GPUs
  std::optional<std::uint32_t> nic_in{};  // indices into nodes_of(kNic); nothing within one machine
  std::optional<std::uint32_t> nic_out{};
  double gbytes_per_s = 0;
  PathType worst_path = PathType::kLoc;  // between neighbours
  PathType worst_nic_path = PathType::kLoc;

  bool operator==(const Ring&) const = default;
};

struct Tree {
  std::vector<std::uint32_t> chain{};  // from the head; as Ring::gpus
  std::optional<std::uint32_t> nic{};
  double gbytes_per_s = 0;
  PathType worst_path = PathType::kLoc;
  PathType worst_nic_path = PathType::kLoc;

  bool operator==(const Tree&) const = default;
};

// What limits the rings: a link in one direction, or a NIC's port.
struct Bottleneck {
  std::string name{};                  // "gpu0 -> nvswitch", "mlx5_0 in"
  Hop hop{};                           // of a link; of a port only `reversed`, which is "in"
  std::optional<std::uint32_t> nic{};  // of a port: index into nodes_of(kNic)
  // Adding up the prices of all that a ring passes gives at least 1 for every ring that there can be, while all
  // bottlenecks' capacities times their prices add up to ring_bound_gbytes_per_s.
  double price = 0;

  bool operator==(const Bottleneck&) const = default;
};

enum class WarningKind : std::uint8_t {
  kDisconnected,  // there is no ring: one in the order of the numbers, of no known bandwidth, stands in
  kNoNic,         // across machines was asked for: routes within one machine
  kNotNvLink,     // there are NVLinks, but no ring by them alone
  kCrossing,      // rails are crossed
  kUnproven,      // the steps were used up, or there are too many GPUs: there may be better ones
  kLeftOut,       // more than a tenth of what rings of unequal bandwidths, or more rings, would have
};

struct Warning {
  WarningKind kind = WarningKind::kUnproven;
  std::string message{};  // with the reason

  bool operator==(const Warning&) const = default;
};

struct Routes {
  std::vector<Ring> rings{};
  std::vector<Tree> trees{};
  double ring_gbytes_per_s = 0;        // of all rings together
  double ring_bound_gbytes_per_s = 0;  // no set of rings has more; infinite: not known
  double tree_gbytes_per_s = 0;
  double tree_bound_gbytes_per_s = 0;
  std::vector<Bottleneck> bottlenecks{};  // of the rings, the largest part of the bound first
  std::vector<Warning> warnings{};        // to be shown to the user
  std::uint64_t steps = 0;                // of the search

  bool operator==(const Routes&) const = default;
};

// Never fails; a machine with no or one GPU has no routes within itself, which is no warning.
Routes find_routes(const Graph& graph, const SearchOptions& options);

}  // namespace tutti
