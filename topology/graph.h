// Graph: a machine as a graph of its parts and the links between them. It is built from hwloc, sysfs, the CUDA driver
// and NVML (topology/discover.h), from a file in NCCL's XML format (topology/xml/xml.h), or by name
// (topology/cluster.h). A value type that contains only data; may be used by any thread.
//
// Links are full duplex: each direction has the stated bandwidth, independently of the other direction. A graph
// describes one machine. A Cluster (topology/cluster.h) represents several identical machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

enum class NodeKind : std::uint8_t {
  kCpu,       // a NUMA node: its cores and its memory
  kPci,       // a PCI bridge or switch, a network card with several ports, or another PCI device of a file
  kGpu,       // a GPU; its PCI device is not a node of its own
  kNvSwitch,  // all NVSwitches of a machine, as one node
  kNic,       // one port of a network card
};

enum class LinkKind : std::uint8_t {
  kNvLink,  // NVLink from a GPU to another GPU, to the NVSwitch, or to a POWER CPU
  kXgmi,    // AMD's xGMI between GPUs
  kC2c,     // NVLink-C2C (chip to chip), between CPU and GPU of one package
  kPci,
  kCpu,  // between two NUMA nodes, usually of different sockets
};

// How two parts reach each other, classified by the links and switches on the path. The names are those of NCCL, in the
// order from near to far. nvidia-smi uses some of them, too, for example PIX and SYS.
enum class PathType : std::uint8_t {
  kLoc,  // from a part to itself
  kNvl,  // NVLink (or xGMI), direct or through the switch
  kNvb,  // NVLink through another GPU
  kC2c,  // NVLink-C2C
  kPix,  // over PCI, through at most one PCI switch
  kPxb,  // over PCI, through several PCI switches but no CPU
  kP2c,  // between a GPU and a NIC (or PCI switch), over NVLink-C2C to a CPU and over PCI from there
  kPxn,  // from a GPU to a NIC, over NVLink to a GPU that is nearer to the NIC
  kPhb,  // through a CPU, or over PCI to or from a CPU
  kSys,  // over a link between two NUMA nodes (LinkKind::kCpu)
  kNet,  // over the network
  kDis,  // not connected
};

struct CpuInfo {
  std::string affinity{};  // mask of the node's CPUs, in the kernel's format: "00000000,0000ffff"; empty: unknown
  std::string arch{};      // "x86_64", "arm64", "ppc64", ...
  std::string vendor{};    // "GenuineIntel", "AuthenticAMD", ...
  std::int32_t family = 0;
  std::int32_t model = 0;

  bool operator==(const CpuInfo&) const = default;
};

// The PCI device of a node of the kind kPci or kGpu, or of a NIC that is a PCI device of its own. In all fields, 0 or
// an empty text means unknown.
struct PciInfo {
  std::string bus_id{};  // for example "0000:3b:00.0", in lower case
  std::uint32_t device_class = 0;
  // The PCI ids of the device.
  std::uint32_t vendor = 0, device = 0, subsystem_vendor = 0, subsystem_device = 0;
  // Speed of the device's PCI link per lane, in GT/s; 16 is PCI Express 4.
  double gigatransfers_per_s = 0;
  std::uint32_t width = 0;  // number of lanes of the link

  bool operator==(const PciInfo&) const = default;
};

struct GpuInfo {
  std::int32_t device = -1;      // number of the GPU, for example the CUDA driver's; -1: not numbered
  std::int32_t rank = -1;        // the rank that uses the GPU; -1: none is known
  std::int32_t capability = 0;   // 90 is sm_90; for AMD, the attribute sm of the XML file; 0: unknown
  std::optional<bool> direct{};  // GPUDirect RDMA is possible; empty: unknown
  std::string gcn{};             // AMD's architecture: the attribute gcn of the XML file; empty: not AMD, or unknown
  std::string arch{};            // the attribute arch of the XML file, with which RCCL also names the architecture

  bool operator==(const GpuInfo&) const = default;
};

struct NicInfo {
  std::int32_t device = -1;
  std::string guid{};
  double megabits_per_s = 0;
  std::int32_t port = 1;
  double latency_us = 0;
  std::int64_t max_connections = 0;
  std::optional<bool> direct{};  // GPUDirect RDMA is possible; empty: unknown
  bool collective = false;       // the network behind the NIC can execute reductions (the attribute coll of the file)

  bool operator==(const NicInfo&) const = default;
};

struct GraphNode {
  NodeKind kind = NodeKind::kCpu;
  std::string name{};      // unique in the graph: "cpu0", "gpu3", "pci 0000:3b:00.0", "nvswitch", "mlx5_0"
  CpuInfo cpu{};           // for kCpu
  PciInfo pci{};           // for kPci, kGpu, kNic
  GpuInfo gpu{};           // for kGpu
  NicInfo nic{};           // for kNic
  std::int32_t numa = -1;  // for kCpu: the number of the NUMA node

  bool operator==(const GraphNode&) const = default;
};

struct GraphLink {
  std::uint32_t from = 0;  // index into nodes; in a link of the PCI tree, the part that is nearer to the CPU
  std::uint32_t to = 0;
  LinkKind kind = LinkKind::kPci;
  std::uint32_t count = 1;  // number of physical links in parallel
  double gbytes_per_s = 0;  // bandwidth of all `count` links together, in each direction; greater than 0

  bool operator==(const GraphLink&) const = default;
};

struct Graph {
  std::string name{};  // for people: the name of the shape, of the file or in the file, or "this machine"
  std::vector<GraphNode> nodes{};
  std::vector<GraphLink> links{};

  bool operator==(const Graph&) const = default;
};

// add_node() and add_link() build a graph part by part. add_node() adds a node in which only kind and name are set, and
// returns its index.
std::uint32_t add_node(Graph& graph, NodeKind kind, std::string name);
// Adds `count` parallel links with `gbytes_per_s` together. Both ends must exist and be different.
void add_link(Graph& graph, std::uint32_t from, std::uint32_t to, LinkKind kind, std::uint32_t count,
              double gbytes_per_s);

// The indexes of all nodes of one kind. GPUs and NICs are sorted by device number, CPUs by NUMA number.
std::vector<std::uint32_t> nodes_of(const Graph& graph, NodeKind kind);

// One link of a path, with its direction.
struct Hop {
  std::uint32_t link = 0;  // index into Graph::links
  bool reversed = false;   // true: from `to` to `from`

  bool operator==(const Hop&) const = default;
};

struct Path {
  PathType type = PathType::kDis;
  double gbytes_per_s = 0;  // bandwidth of the slowest link on the path; infinite for kLoc, 0 for kDis
  std::vector<Hop> hops{};

  bool operator==(const Path&) const = default;
};

// Returns the best path from `node` to each node, indexed by node; kDis if there is none. Of two paths, the one with
// the nearer PathType is better, then the one with the higher bandwidth, then the one with fewer hops, then the one
// with lower node numbers. GPUs and NICs do not forward traffic, except that one GPU may forward it between two other
// GPUs (kNvb). kPxn and kNet are never returned. The path in the opposite direction has the same type and bandwidth,
// except that from a network card with several ports (as a kPci node) to another part it may be kPxb, and back kPix.
// The time is roughly proportional to links * distinct bandwidths.
std::vector<Path> paths_from(const Graph& graph, std::uint32_t node);

std::string_view to_string(NodeKind kind);  // "cpu", "pci", ...
std::string_view to_string(LinkKind kind);  // "NVLink", "xGMI", ...
std::string_view to_string(PathType type);  // "NVL", "PIX", ...

}  // namespace tutti
