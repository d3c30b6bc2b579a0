// Cluster: a number of identical machines and the network that connects them. A value type; may be used by any
// thread.
//
// Ranks are numbered machine by machine: rank r runs on machine r / ranks_per_machine, as its (r %
// ranks_per_machine)-th rank, counted from 0. If the machine has GPUs, its i-th rank uses the i-th GPU in the order of
// their numbers, and make_shape() and make_cluster() give it one rank for each GPU. Otherwise the ranks are distributed
// over the machine's CPUs in contiguous blocks.
#pragma once

#include <cstdint>
#include <string>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti {

enum class FabricKind : std::uint8_t {
  kNone,           // there is only one machine, or one switch connects the NICs of all machines
  kFatTree,        // all NICs of a machine are connected to one leaf switch
  kRailOptimised,  // NIC i of each machine in a group of machines is connected to leaf switch i of this group
};

// A network with two levels, leaf switches and spine switches. Every leaf is connected to every spine. All uplinks
// (from a leaf to a spine) have the same bandwidth. Those of one leaf together have the bandwidth of the downlinks (to
// the NICs) of an average leaf with machines_per_leaf machines, divided by `oversubscription`.
struct Fabric {
  FabricKind kind = FabricKind::kNone;
  std::uint32_t machines_per_leaf = 32;  // machines at one leaf switch; for kRailOptimised: machines in one group
  double oversubscription = 1;           // at least 1
  // The number of spines, and of uplinks of each leaf: one uplink to each spine. If no uplink is broken, the machine
  // and the NIC of a message's destination determine the spine that the message uses (model/network.h).
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
inline constexpr std::uint32_t kMaxNics = 64;  // NICs of one machine
inline constexpr std::uint32_t kMaxRanksPerMachine = 1024;

struct ShapeOptions {
  std::string name{};          // one of shape_names()
  std::uint32_t machines = 1;  // 1 .. kMaxMachines
  std::uint32_t nics = 0;      // for each machine; 0: the default of the shape
  // For each machine. 0: one rank for each GPU, or for each CPU (NUMA node) if there are no GPUs. If there are GPUs,
  // any other value than 0 and their number is an error.
  std::uint32_t ranks = 0;
  std::string fabric{};                 // "fat-tree" or "rail-optimised"; empty: the default of the shape
  double oversubscription = 1;          // 1 .. 64
  std::uint32_t machines_per_leaf = 0;  // 0: the default of the shape
};

// Makes a predefined cluster: dgx-a100, dgx-h100, dgx-b200, hgx-h100, pcie-8gpu, cpu-2socket, ... With one machine, the
// fabric is kNone. Errors: kInvalidArgument if the shape or the fabric is unknown, or if an option has a value that is
// not permitted; the message contains the known names or the permitted values.
Result<Cluster> make_shape(const ShapeOptions& options);
std::vector<std::string> shape_names();

// Makes a cluster of machines that are identical to `machine`, for example one from a file. Ignores options.name. The
// default network is a fat tree with 32 machines per leaf switch. With one machine, the fabric is kNone. There is one
// rank for each GPU; without GPUs, there are options.ranks ranks on each machine, or one for each CPU if options.ranks
// is 0. Errors: kInvalidArgument if the fabric is unknown, if an option has a value that is not permitted, if the
// machine is too large, or if options.nics is not 0, because the machine determines its NICs.
Result<Cluster> make_cluster(const Graph& machine, const ShapeOptions& options);

// Limits for the GPUs and the parts (nodes of the graph) of a machine in make_cluster(), which also applies kMaxNics.
// They exist because a path from each GPU (from each CPU if there are no GPUs) to each part is stored.
inline constexpr std::uint32_t kMaxGpus = 256;
inline constexpr std::uint32_t kMaxParts = 4096;

}  // namespace tutti
