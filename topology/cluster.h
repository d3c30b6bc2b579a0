// Cluster: a number of identical machines and the network that connects them. A value type; may be used by any
// thread.
//
// Ranks are numbered machine by machine. On each machine, rank i uses GPU i. On a machine without GPUs there are
// `ranks_per_machine` ranks, which are distributed over its CPUs in contiguous blocks.
#pragma once

#include <cstdint>
#include <string>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti {

enum class FabricKind : std::uint8_t {
  kNone,           // one machine
  kFatTree,        // all NICs of a machine are connected to one leaf switch
  kRailOptimised,  // NIC i of every machine of a group is connected to leaf switch i of the group
};

// A network with two levels, leaf switches and spine switches. Every leaf is connected to every spine. All uplinks
// of a leaf together have the bandwidth of its downlinks divided by `oversubscription`.
struct Fabric {
  FabricKind kind = FabricKind::kNone;
  std::uint32_t machines_per_leaf = 32;  // for one leaf switch, or for one group of rails
  double oversubscription = 1;           // at least 1
  // The number of uplinks of a leaf, each of which leads to a different spine. Flows are distributed over the
  // uplinks by (source, destination), as ECMP does.
  std::uint32_t spines = 8;

  bool operator==(const Fabric&) const = default;
};

struct Cluster {
  std::string name{};
  Graph machine{};
  std::uint32_t machines = 1;
  std::uint32_t ranks_per_machine = 1;
  Fabric fabric{};

  std::uint32_t ranks() const { return machines * ranks_per_machine; }
  bool operator==(const Cluster&) const = default;
};

inline constexpr std::uint32_t kMaxMachines = 1 << 20;
inline constexpr std::uint32_t kMaxNics = 64;  // for each machine
inline constexpr std::uint32_t kMaxRanksPerMachine = 1024;

struct ShapeOptions {
  std::string name{};          // one of shape_names()
  std::uint32_t machines = 1;  // 1 .. kMaxMachines
  std::uint32_t nics = 0;      // for each machine; 0: the default of the shape
  // For each machine. 0: one rank for each CPU. If there are GPUs, it must be their number, or 0.
  std::uint32_t ranks = 0;
  std::string fabric{};                 // "fat-tree" or "rail-optimised"; empty: the default of the shape
  double oversubscription = 1;          // 1 .. 64
  std::uint32_t machines_per_leaf = 0;  // 0: the default of the shape
};

// Makes a predefined cluster: dgx-a100, dgx-h100, dgx-b200, hgx-h100, pcie-8gpu, cpu-2socket, ... A single machine
// has no fabric. Errors: kInvalidArgument, with the known names or the permitted range.
Result<Cluster> make_shape(const ShapeOptions& options);
std::vector<std::string> shape_names();

// Makes a cluster of machines that are identical to `machine`, which comes from a file or from discover(). All
// options are used except `name` and `nics`. The default network is a fat tree with 32 machines per leaf switch.
// There is one rank for each GPU; without GPUs, the number of ranks is determined as in make_shape(). Errors:
// kInvalidArgument, with the permitted range, also if the machine is too large, or if `nics` is set, because the
// machine determines its NICs.
Result<Cluster> make_cluster(const Graph& machine, const ShapeOptions& options);

// Limits for a machine in make_cluster(). They exist because paths are stored for each pair of a rank and a part.
inline constexpr std::uint32_t kMaxGpus = 256;
inline constexpr std::uint32_t kMaxParts = 4096;

}  // namespace tutti
