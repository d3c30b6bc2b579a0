// The search: rings and trees through the GPUs of a machine, with as much bandwidth as its links have for them. Called
// by `tutti topo`, the simulator and whoever sets up channels; a pure function, the same answer for the same graph, any
// thread. docs/decisions/0017-search.md tells the method.
//
// What is sought. A ring passes every GPU once and each pair of neighbours by the nearest path (paths_from). Across
// machines it comes in by a NIC and leaves by one: rails are kept where it is the same, and it may be another one only
// where this yields more than `crossing_gain` more. A GPU sends to a NIC through a GPU that is nearer to that and has
// NVLink (PXN) where its own path is farther. All rings together may load each link, in each direction, and each port
// no more than it carries, each ring by its bandwidth for each time that it passes. All rings have the same bandwidth,
// as channels share out a message evenly. Of all such sets of at most max_rings rings one is found that has the most
// bandwidth in all; of those one with the fewest rings; of those the first one met, nearest neighbours and lowest
// numbers first. Rings whose worst path between GPUs, and then to NICs, is of a nearer type are preferred where they
// have nearly as much
// (`nearness`). No patterns are known beforehand. Routes::bottlenecks is the proof that rings, with equal bandwidths or
// not, never have more than ring_bound_gbytes_per_s.
//
// A tree is a machine's part of one: a chain from the GPU at its head, which is the NIC's neighbour, through every GPU.
// Sums go to the head and results from it at the same time, so it loads its links and its NIC in both directions. Among
// machines the algorithm says who is whose parent (double binary trees, say): that has to do with the number of
// machines, not with their links. Chains and not bushes, as a GPU that adds up k inputs needs k times the inward
// bandwidth of one that adds one, and the number of GPUs in a machine is small.
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
