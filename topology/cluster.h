// Equal machines and the network that joins them. A value; any thread.
//
// Ranks are numbered machine by machine; on each, rank i stands on the i-th GPU or, where a machine has none, on the
// i-th of `ranks_per_machine` places, dealt to its CPUs in blocks.
#pragma once

#include <cstdint>
#include <string>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti {

enum class FabricKind : std::uint8_t {
  kNone,           // one machine
  kFatTree,        // all NICs of a machine at one leaf switch
  kRailOptimised,  // NIC i of every machine of a group at leaf switch i of the group
};

// A two-level network of leaf and spine switches. All leaves reach all spines; a leaf's uplinks together have the
// bandwidth of its downlinks divided by `oversubscription`.
struct Fabric {
  FabricKind kind = FabricKind::kNone;
  std::uint32_t machines_per_leaf = 32;  // of one leaf switch, or of one group of rails
  double oversubscription = 1;           // >= 1
  // A leaf's uplinks, each to a spine of its own. Flows are dealt to them by (source, destination), as ECMP does.
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
inline constexpr std::uint32_t kMaxNics = 64;  // of a machine
inline constexpr std::uint32_t kMaxRanksPerMachine = 1024;

struct ShapeOptions {
  std::string name{};                   // one of shape_names()
  std::uint32_t machines = 1;           // 1 .. kMaxMachines
  std::uint32_t nics = 0;               // of each machine; 0: the shape's own
  std::uint32_t ranks = 0;              // of each machine; 0: one for each CPU; with GPUs as many as these, or 0
  std::string fabric{};                 // "fat-tree", "rail-optimised"; empty: the shape's own
  double oversubscription = 1;          // 1 .. 64
  std::uint32_t machines_per_leaf = 0;  // 0: the shape's own
};

// A ready-made cluster by name: dgx-a100, dgx-h100, dgx-b200, hgx-h100, pcie-8gpu, cpu-2socket, ... One machine has no
// fabric. Errors: kInvalidArgument, with the names or the range that there are.
Result<Cluster> make_shape(const ShapeOptions& options);
std::vector<std::string> shape_names();

// So many machines like this one (a file's, this machine): of the options all but name and nics count, and what a
// shape would know by itself is a fat tree with 32 machines at a leaf switch. One rank for each GPU; without GPUs as
// for shapes. Errors: kInvalidArgument with the range that there is, for machines that are too large, and for `nics`,
// which the machine says itself.
Result<Cluster> make_cluster(const Graph& machine, const ShapeOptions& options);

// Of a machine that make_cluster() takes: paths are held for each pair of rank and part.
inline constexpr std::uint32_t kMaxGpus = 256;
inline constexpr std::uint32_t kMaxParts = 4096;

}  // namespace tutti
