// Predefined machines (shapes). The comments state which of their properties are published and which are guessed.
// topology/speeds.h contains the bandwidths of the links. If machines of the same model differ in their
// wiring, the shape has the simplest wiring with the right bandwidths.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/assert.h"
#include "topology/cluster.h"
#include "topology/speeds.h"

namespace tutti {
namespace {

// Speeds of one port, in Mbit/s: InfiniBand HDR (or 200 Gbit/s Ethernet), NDR, EDR.
constexpr double kHdr = 200'000;
constexpr double kNdr = 400'000;
constexpr double kEdr = 100'000;

enum class NvLinkLayout : std::uint8_t {
  kNone,
  kSwitch,
  kPairs,    // bridges between GPUs 0 and 1, 2 and 3, ...
  kCubeMesh  // eight GPUs with six links each
};

// The vendor, family and model of the CPUs. cpu_link_gbytes_per_s() gets the bandwidth between sockets from vendor and
// model.
struct CpuModel {
  std::string_view vendor = "GenuineIntel";
  std::int32_t family = 6;
  std::int32_t model = 143;
};
constexpr CpuModel kBroadwell{.model = 79};
constexpr CpuModel kSapphireRapids{.model = 143};
constexpr CpuModel kEmeraldRapids{.model = 207};
constexpr CpuModel kRome{.vendor = "AuthenticAMD", .family = 23, .model = 49};

// The parameters from which Builder builds the graph of a machine.
struct Shape {
  std::string_view name{};
  std::uint32_t cpus = 1;
  CpuModel cpu{};
  std::uint32_t gpus = 0;
  std::int32_t capability = 0;
  NvLinkLayout nvlinks = NvLinkLayout::kNone;
  std::uint32_t nvlink_count = 0;     // kSwitch: number of links from each GPU to the switch; kPairs: in each bridge
  std::uint32_t gpus_per_switch = 1;  // GPUs at each PCI switch; the switches are divided evenly among the CPUs
  double pci_gigatransfers_per_s = 16;
  std::uint32_t nics = 0;
  double nic_megabits_per_s = 0;
  FabricKind fabric = FabricKind::kFatTree;
  std::uint32_t machines_per_leaf = 32;
};

// Published, in the data sheets of the vendors: GPUs, NVLinks, and the NICs and CPUs of the DGX machines. Guessed: the
// PCI switches, the network between machines (machines per leaf: 32, or 20 for A100, which are the scalable units of
// NVIDIA's reference architectures), and the CPUs and NICs of the other machines. If there is one NIC for each GPU,
// both are connected to the same PCI switch (on dgx-a100 and hgx-h100, two such pairs share a switch).
constexpr std::array kShapes{
    Shape{.name = "dgx-1v",
          .cpus = 2,
          .cpu = kBroadwell,
          .gpus = 8,
          .capability = 70,
          .nvlinks = NvLinkLayout::kCubeMesh,
          .gpus_per_switch = 2,
          .pci_gigatransfers_per_s = 8,
          .nics = 4,
          .nic_megabits_per_s = kEdr},
    Shape{.name = "dgx-a100",
          .cpus = 2,
          .cpu = kRome,
          .gpus = 8,
          .capability = 80,
          .nvlinks = NvLinkLayout::kSwitch,
          .nvlink_count = 12,
          .gpus_per_switch = 2,
          .pci_gigatransfers_per_s = 16,
          .nics = 8,
          .nic_megabits_per_s = kHdr,
          .fabric = FabricKind::kRailOptimised,
          .machines_per_leaf = 20},
    Shape{.name = "dgx-h100",
          .cpus = 2,
          .cpu = kSapphireRapids,
          .gpus = 8,
          .capability = 90,
          .nvlinks = NvLinkLayout::kSwitch,
          .nvlink_count = 18,
          .pci_gigatransfers_per_s = 32,
          .nics = 8,
          .nic_megabits_per_s = kNdr,
          .fabric = FabricKind::kRailOptimised},
    Shape{.name = "dgx-b200",
          .cpus = 2,
          .cpu = kEmeraldRapids,
          .gpus = 8,
          .capability = 100,
          .nvlinks = NvLinkLayout::kSwitch,
          .nvlink_count = 18,
          .pci_gigatransfers_per_s = 32,
          .nics = 8,
          .nic_megabits_per_s = kNdr,
          .fabric = FabricKind::kRailOptimised},
    // HGX is a board with eight GPUs that various makers build into their machines. Clouds also offer it with fewer
    // NICs.
    Shape{.name = "hgx-h100",
          .cpus = 2,
          .cpu = kSapphireRapids,
          .gpus = 8,
          .capability = 90,
          .nvlinks = NvLinkLayout::kSwitch,
          .nvlink_count = 18,
          .gpus_per_switch = 2,
          .pci_gigatransfers_per_s = 32,
          .nics = 8,
          .nic_megabits_per_s = kNdr},
    Shape{.name = "pcie-8gpu",
          .cpus = 2,
          .cpu = kRome,
          .gpus = 8,
          .capability = 80,
          .gpus_per_switch = 4,
          .pci_gigatransfers_per_s = 16,
          .nics = 2,
          .nic_megabits_per_s = kHdr},
    // Two pairs of A100; a bridge connects the GPUs of a pair. A bridge has 600 GB/s in both directions together, which
    // are 12 links of NVLink 3 with 50 GB/s each.
    Shape{.name = "nvlink-4gpu",
          .cpus = 2,
          .cpu = kRome,
          .gpus = 4,
          .capability = 80,
          .nvlinks = NvLinkLayout::kPairs,
          .nvlink_count = 12,
          .pci_gigatransfers_per_s = 16,
          .nics = 1,
          .nic_megabits_per_s = kHdr},
    Shape{.name = "cpu-1socket", .pci_gigatransfers_per_s = 16, .nics = 1, .nic_megabits_per_s = kEdr},
    Shape{.name = "cpu-2socket",
          .cpus = 2,
          .cpu = kSapphireRapids,
          .pci_gigatransfers_per_s = 16,
          .nics = 1,
          .nic_megabits_per_s = kEdr},
};

// The NVLinks in the hybrid cube mesh of eight V100 (published in NVIDIA's DGX-1 white paper): GPUs 0 to 3 are linked
// with each other, GPUs 4 to 7 are linked with each other, and GPU i is linked with GPU i + 4. `count` is the number
// of parallel links between two GPUs.
struct MeshLink {
  std::uint32_t from, to, count;
};
constexpr std::array<MeshLink, 16> kCubeMesh{{{0, 1, 1},
                                              {0, 2, 1},
                                              {0, 3, 2},
                                              {0, 4, 2},
                                              {1, 2, 2},
                                              {1, 3, 1},
                                              {1, 5, 2},
                                              {2, 3, 2},
                                              {2, 6, 1},
                                              {3, 7, 1},
                                              {4, 5, 1},
                                              {4, 6, 1},
                                              {4, 7, 2},
                                              {5, 6, 2},
                                              {5, 7, 1},
                                              {6, 7, 2}}};

class Builder {
 public:
  Builder(const Shape& shape, std::uint32_t nics)
      : shape_(shape), nics_(nics), pci_gbytes_per_s_(pci_gbytes_per_s(shape.pci_gigatransfers_per_s, 16)) {
    graph_.name = shape.name;
  }

  Graph build() {
    add_cpus();
    add_switches();
    for (std::uint32_t gpu = 0; gpu < shape_.gpus; ++gpu) add_gpu(gpu);
    add_nvlinks();
    for (std::uint32_t nic = 0; nic < nics_; ++nic) add_nic(nic);
    return std::move(graph_);
  }

 private:
  // Fills in the PCI properties of a node, with a bus of its own. Buses are numbered from 1 in the order of the calls.
  void set_pci(std::uint32_t node, std::uint32_t device_class) {
    PciInfo& pci = graph_.nodes[node].pci;
    pci.bus_id = fmt::format("0000:{:02x}:00.0", ++buses_);
    pci.device_class = device_class;
    pci.gigatransfers_per_s = shape_.pci_gigatransfers_per_s;
    pci.width = 16;
  }

  void add_cpus() {
    for (std::uint32_t i = 0; i < shape_.cpus; ++i) {
      const std::uint32_t node = add_node(graph_, NodeKind::kCpu, fmt::format("cpu{}", i));
      graph_.nodes[node].numa = static_cast<std::int32_t>(i);
      CpuInfo& cpu = graph_.nodes[node].cpu;
      cpu.arch = "x86_64";
      cpu.vendor = shape_.cpu.vendor;
      cpu.family = shape_.cpu.family;
      cpu.model = shape_.cpu.model;
      if (i > 0) add_link(graph_, i - 1, i, LinkKind::kCpu, 1, cpu_link_gbytes_per_s(cpu));
    }
  }

  void add_switches() {
    const std::uint32_t count = shape_.gpus / shape_.gpus_per_switch;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t node = add_node(graph_, NodeKind::kPci, {});
      set_pci(node, 0x060400);
      graph_.nodes[node].name = "pci " + graph_.nodes[node].pci.bus_id;
      add_link(graph_, i * shape_.cpus / count, node, LinkKind::kPci, 1, pci_gbytes_per_s_);
      switches_.push_back(node);
    }
  }

  void add_gpu(std::uint32_t number) {
    const std::uint32_t node = add_node(graph_, NodeKind::kGpu, fmt::format("gpu{}", number));
    set_pci(node, 0x030200);
    graph_.nodes[node].gpu.device = static_cast<std::int32_t>(number);
    graph_.nodes[node].gpu.rank = static_cast<std::int32_t>(number);
    graph_.nodes[node].gpu.capability = shape_.capability;
    graph_.nodes[node].gpu.direct = true;
    add_link(graph_, switches_[number / shape_.gpus_per_switch], node, LinkKind::kPci, 1, pci_gbytes_per_s_);
    gpus_.push_back(node);
  }

  void add_nvlinks() {
    const double one = nvlink_gbytes_per_s(shape_.capability);
    if (shape_.nvlinks == NvLinkLayout::kSwitch) {
      const std::uint32_t node = add_node(graph_, NodeKind::kNvSwitch, "nvswitch");
      for (std::uint32_t gpu : gpus_)
        add_link(graph_, gpu, node, LinkKind::kNvLink, shape_.nvlink_count, shape_.nvlink_count * one);
    } else if (shape_.nvlinks == NvLinkLayout::kPairs) {
      for (std::size_t i = 0; i + 1 < gpus_.size(); i += 2) {
        add_link(graph_, gpus_[i], gpus_[i + 1], LinkKind::kNvLink, shape_.nvlink_count, shape_.nvlink_count * one);
      }
    } else if (shape_.nvlinks == NvLinkLayout::kCubeMesh) {
      for (const MeshLink& mesh_link : kCubeMesh) {
        add_link(graph_, gpus_[mesh_link.from], gpus_[mesh_link.to], LinkKind::kNvLink, mesh_link.count,
                 mesh_link.count * one);
      }
    }
  }

  // Distributes the NICs as evenly as possible over the PCI switches of the GPUs, or over the CPUs if there are no
  // GPUs.
  void add_nic(std::uint32_t number) {
    const std::uint32_t node = add_node(graph_, NodeKind::kNic, fmt::format("mlx5_{}", number));
    set_pci(node, 0x020000);
    NicInfo& nic = graph_.nodes[node].nic;
    nic.device = static_cast<std::int32_t>(number);
    nic.guid = fmt::format("0x{:x}", number + 1);
    nic.megabits_per_s = shape_.nic_megabits_per_s;
    nic.max_connections = 131072;
    nic.direct = shape_.gpus > 0;
    const std::size_t parent_count = shape_.gpus > 0 ? switches_.size() : shape_.cpus;
    const std::size_t at = number * parent_count / nics_;
    add_link(graph_, shape_.gpus > 0 ? switches_[at] : static_cast<std::uint32_t>(at), node, LinkKind::kPci, 1,
             pci_gbytes_per_s_);
  }

  const Shape& shape_;
  std::uint32_t nics_;
  double pci_gbytes_per_s_;
  Graph graph_;
  std::uint32_t buses_ = 0;
  std::vector<std::uint32_t> switches_;
  std::vector<std::uint32_t> gpus_;
};

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

Status check_ranges(const ShapeOptions& options) {
  if (options.machines < 1 || options.machines > kMaxMachines) {
    return invalid(fmt::format("{} machines; 1 to {} are possible", options.machines, kMaxMachines));
  }
  if (options.nics > kMaxNics) return invalid(fmt::format("{} NICs; a machine has at most {}", options.nics, kMaxNics));
  if (options.ranks > kMaxRanksPerMachine) {
    return invalid(fmt::format("{} ranks on a machine; at most {} are possible", options.ranks, kMaxRanksPerMachine));
  }
  if (!(options.oversubscription >= 1 && options.oversubscription <= 64)) {
    return invalid(fmt::format("oversubscription {}; it is at least 1 (uplinks as wide as downlinks) and at most 64",
                               options.oversubscription));
  }
  if (options.machines_per_leaf > kMaxMachines) {
    return invalid(
        fmt::format("{} machines at a leaf switch; at most {} are possible", options.machines_per_leaf, kMaxMachines));
  }
  return {};
}

Result<Fabric> make_fabric(const ShapeOptions& options, FabricKind kind, std::uint32_t machines_per_leaf) {
  Fabric fabric{.kind = kind, .machines_per_leaf = machines_per_leaf, .oversubscription = options.oversubscription};
  if (options.fabric == "fat-tree") {
    fabric.kind = FabricKind::kFatTree;
  } else if (options.fabric == "rail-optimised") {
    fabric.kind = FabricKind::kRailOptimised;
  } else if (!options.fabric.empty()) {
    return invalid(fmt::format("no fabric is called '{}'; there are fat-tree and rail-optimised", options.fabric));
  }
  if (options.machines_per_leaf > 0) fabric.machines_per_leaf = options.machines_per_leaf;
  if (options.machines == 1) fabric.kind = FabricKind::kNone;
  return fabric;
}

}  // namespace

Result<Cluster> make_shape(const ShapeOptions& options) {
  const auto* const shape =
      std::find_if(kShapes.begin(), kShapes.end(), [&](const Shape& one) { return one.name == options.name; });
  if (shape == kShapes.end()) {
    return invalid(fmt::format("no shape is called '{}'; there are {}", options.name, fmt::join(shape_names(), ", ")));
  }
  TUTTI_TRY(check_ranges(options));
  if (shape->gpus > 0 && options.ranks > 0 && options.ranks != shape->gpus) {
    return invalid(fmt::format("{} ranks on each machine, but {} has {} GPUs, and each is one rank", options.ranks,
                               shape->name, shape->gpus));
  }
  const Result<Fabric> fabric = make_fabric(options, shape->fabric, shape->machines_per_leaf);
  TUTTI_TRY(fabric);
  Cluster cluster;
  cluster.name = options.machines > 1 ? fmt::format("{} x {}", options.machines, shape->name) : shape->name;
  cluster.machine = Builder(*shape, options.nics > 0 ? options.nics : shape->nics).build();
  cluster.machines = options.machines;
  cluster.ranks_per_machine = shape->gpus > 0 ? shape->gpus : options.ranks > 0 ? options.ranks : shape->cpus;
  cluster.fabric = *fabric;
  return cluster;
}

Result<Cluster> make_cluster(const Graph& machine, const ShapeOptions& options) {
  TUTTI_TRY(check_ranges(options));
  const auto gpus = static_cast<std::uint32_t>(nodes_of(machine, NodeKind::kGpu).size());
  const auto cpus = static_cast<std::uint32_t>(nodes_of(machine, NodeKind::kCpu).size());
  const std::size_t nics = nodes_of(machine, NodeKind::kNic).size();
  if (gpus > kMaxGpus || nics > kMaxNics || machine.nodes.size() > kMaxParts) {
    return invalid(fmt::format("{} has {} GPUs, {} NICs and {} parts; at most {}, {} and {} are possible", machine.name,
                               gpus, nics, machine.nodes.size(), kMaxGpus, kMaxNics, kMaxParts));
  }
  if (options.nics > 0) {
    return invalid(fmt::format("{} NICs were requested, but {} has {}; leave the number of NICs out", options.nics,
                               machine.name, nics));
  }
  if (gpus > 0 && options.ranks > 0 && options.ranks != gpus) {
    return invalid(fmt::format("{} ranks on each machine, but {} has {} GPUs, and each is one rank", options.ranks,
                               machine.name, gpus));
  }
  const Shape usual;
  const Result<Fabric> fabric = make_fabric(options, usual.fabric, usual.machines_per_leaf);
  TUTTI_TRY(fabric);
  Cluster cluster;
  cluster.name = options.machines > 1 ? fmt::format("{} x {}", options.machines, machine.name) : machine.name;
  cluster.machine = machine;
  cluster.machines = options.machines;
  cluster.ranks_per_machine = gpus > 0 ? gpus : options.ranks > 0 ? options.ranks : cpus;
  cluster.fabric = *fabric;
  return cluster;
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace tutti
