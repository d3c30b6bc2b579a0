// find_routes(): finds rings and trees through the GPUs of a machine that together use as much of its bandwidth as
// possible. Only `tutti topo` and tests use it, to show the possibilities of a machine. Tutti's algorithms do not use
// its results. It is a pure function: the same graph and options always give the same result, and any thread may call
// it. docs/decisions/0017-search.md describes the method.
//
// Rings. A ring visits every GPU once, and the GPUs that follow each other in the ring are connected by their best path
// (paths_from). With several machines, a ring enters each machine by a NIC and leaves it by a NIC. Both are the same
// NIC, so that the ring stays on its rail, unless two different NICs increase the bandwidth by more than
// `crossing_gain`. If the path from a GPU to the NIC is farther than kPxn, the GPU sends through another GPU that is
// nearer to the NIC and to which it has NVLink, if there is one. The search is for a set of at most max_rings rings
// that together do not exceed the capacity of any link or port, in each direction. All rings have the same bandwidth,
// because channels share a message evenly. Of the sets that the search finds within its limits, the result is the one
// with the most bandwidth, then the one with the fewest rings, then the first one found: near places and low numbers
// are tried first. A fraction of the bandwidth, up to `nearness`, is given up if the worst path then has a nearer type.
// There are no built-in patterns. If ring_bound_gbytes_per_s is finite, Routes::bottlenecks proves that no rings, with
// equal bandwidths or not, have more together. If rings leave by the same NIC as they come by, this concerns only rings
// that do the same.
//
// Trees. The part of a tree inside one machine is a chain: it begins at one GPU (the head), which exchanges data with
// the NIC, and visits every GPU. Sums move towards the head while results move away from it, so a chain loads its
// links and its NIC in both directions. It is a chain, and not a tree with branches, because a GPU that adds k inputs
// needs k times the incoming bandwidth. The search does not decide which machine is the parent of which one. The
// algorithm does (for example as a double binary tree), because that depends only on the number of machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/graph.h"

namespace tutti {

struct SearchOptions {
  // true: the machine is one of several equal ones that are connected by their NICs. false: it is alone.
  bool across_machines = false;
  std::uint32_t max_rings = 16;  // largest number of rings, and of trees; 1 to 64
  // Rings leave by another NIC than they came by only if this increases the bandwidth by more than this fraction.
  double crossing_gain = 0.1;
  // Fraction of the bandwidth that may be given up so that paths have nearer types; 0: path types do not matter.
  double nearness = 0.05;
  // Approximate limit of steps for one linear program (see PackingLimits in packing.h). Each of the three searches (for
  // rings, for rings that cross rails, for trees) solves several linear programs, which take about 6 times as many
  // steps at most. If the steps are used up, the best result so far is returned.
  std::uint64_t max_steps = 1u << 24;

  bool operator==(const SearchOptions&) const = default;
};

struct Ring {
  // Indices into nodes_of(kGpu), or into nodes_of(kCpu) if there are no GPUs.
  std::vector<std::uint32_t> gpus{};
  // The NICs by which the ring enters and leaves the machine: indices into nodes_of(kNic). Empty within one machine.
  std::optional<std::uint32_t> nic_in{};
  std::optional<std::uint32_t> nic_out{};
  double gbytes_per_s = 0;                   // 0: unknown
  PathType worst_path = PathType::kLoc;      // the farthest type between GPUs that follow each other in the ring
  PathType worst_nic_path = PathType::kLoc;  // the farthest type between a NIC and a GPU; kLoc within one machine

  bool operator==(const Ring&) const = default;
};

struct Tree {
  // The GPUs, or CPUs, in the order of the chain: indices as in Ring::gpus. The first one is the head of the chain.
  std::vector<std::uint32_t> chain{};
  std::optional<std::uint32_t> nic{};
  double gbytes_per_s = 0;
  PathType worst_path = PathType::kLoc;
  PathType worst_nic_path = PathType::kLoc;

  bool operator==(const Tree&) const = default;
};

// A resource that limits the bandwidth of the rings: a link in one direction, or the port of a NIC in one direction.
struct Bottleneck {
  std::string name{};  // for example "gpu0 -> nvswitch" or "mlx5_0 in"
  // For a link: the link and its direction. For a port, only hop.reversed is set: true means incoming.
  Hop hop{};
  std::optional<std::uint32_t> nic{};  // for a port: index into nodes_of(kNic); empty for a link
  // For every possible ring of the kind that the bound concerns (Routes::ring_bound_gbytes_per_s), the sum of the
  // prices of all resources that it uses is at least 1. The sum of capacity times price over all bottlenecks is the
  // bound.
  double price = 0;

  bool operator==(const Bottleneck&) const = default;
};

enum class WarningKind : std::uint8_t {
  // No ring was found. The result contains one ring in the order of the GPUs' numbers, with unknown bandwidth.
  kDisconnected,
  kNoNic,      // routes across machines were requested, but there is no NIC
  kNotNvLink,  // there are NVLinks, but some ring also uses other paths between GPUs
  kCrossing,   // some rings may leave the machine by another NIC than they came by
  // The steps were used up, or there are too many GPUs for an exact search, so better routes may exist.
  kUnproven,
  // The search was complete, but the bandwidth of the rings, or of the trees, is less than 90% of their bound. More of
  // them, or some with unequal bandwidths, might reach the bound.
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
  double ring_gbytes_per_s = 0;  // all rings together
  // Upper bound for any set of rings; infinite: unknown. With several machines, it is a bound only for rings that leave
  // by the NIC that they came by, unless there is a warning kCrossing; then it is a bound for all rings.
  double ring_bound_gbytes_per_s = 0;
  double tree_gbytes_per_s = 0;
  double tree_bound_gbytes_per_s = 0;
  // Bottlenecks of the rings, the one with the largest capacity times price first. Empty if no bound is known, or if it
  // is proved that there is no ring.
  std::vector<Bottleneck> bottlenecks{};
  std::vector<Warning> warnings{};  // for the user
  std::uint64_t steps = 0;          // steps that the search took

  bool operator==(const Routes&) const = default;
};

// Finds the routes of a machine. Always succeeds. If there is at most one place (GPU, or CPU without GPUs), there are
// no routes within the machine; this gives no warning.
Routes find_routes(const Graph& graph, const SearchOptions& options);

}  // namespace tutti
