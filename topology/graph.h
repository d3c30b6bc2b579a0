// A machine as a graph: what its parts are and which links join them. A value; built from hwloc, NVML and sysfs, from a
// file in NCCL's XML format (topology/xml/xml.h), or by name (topology/shapes.h). Pure data: any thread.
//
// Links are full duplex: each direction carries the stated bandwidth by itself. Every part of one machine is there
// once; clusters of equal machines are a Cluster (topology/cluster.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

enum class NodeKind : std::uint8_t {
  kCpu,       // a NUMA node: its cores and its memory
  kPci,       // a PCI bridge or switch
  kGpu,       // a GPU; its place in the PCI tree is part of it
  kNvSwitch,  // all NVSwitches of a machine, as one
  kNic,       // one port of a network card
};

enum class LinkKind : std::uint8_t {
  kNvLink,  // NVLink, to another GPU or to the switch
  kXgmi,    // AMD's xGMI between GPUs
  kC2c,     // chip to chip, CPU and GPU of one package
  kPci,
  kCpu,  // between the sockets
};

// How two parts reach each other, by the worst thing on the way; the names are those of NCCL and nvidia-smi. The order
// is from near to far.
enum class PathType : std::uint8_t {
  kLoc,  // itself
  kNvl,  // NVLink (or xGMI), directly or by the switch
  kNvb,  // NVLink through another GPU
  kC2c,  // chip to chip
  kPix,  // at most one PCI switch
  kPxb,  // several PCI switches, no CPU
  kP2c,  // a GPU's NIC over chip to chip and a PCI switch
  kPxn,  // a NIC through a GPU that is near to it
  kPhb,  // through a CPU
  kSys,  // between sockets
  kNet,  // through the network
  kDis,  // not at all
};

struct CpuInfo {
  std::string affinity{};  // mask, as in cpumap: "00000000,0000ffff"
  std::string arch{};      // "x86_64", "arm64", "ppc64"
  std::string vendor{};    // "GenuineIntel", "AuthenticAMD", ...
  std::int32_t family = 0;
  std::int32_t model = 0;

  bool operator==(const CpuInfo&) const = default;
};

// Of a node that is a PCI device: kPci, kGpu, and kNic where it is known. Link speed in GT/s, 0: not told.
struct PciInfo {
  std::string bus_id{};  // "0000:3b:00.0", lower case
  std::uint32_t device_class = 0;
  std::uint32_t vendor = 0, device = 0, subsystem_vendor = 0, subsystem_device = 0;  // 0: not told
  double gigatransfers_per_s = 0;
  std::uint32_t width = 0;  // lanes

  bool operator==(const PciInfo&) const = default;
};

struct GpuInfo {
  std::int32_t device = -1;      // its number on the machine
  std::int32_t rank = -1;        // of the job, -1: none
  std::int32_t capability = 0;   // 90 is sm_90; AMD's as written
  std::optional<bool> direct{};  // GPUDirect RDMA
  std::string gcn{};             // AMD's architecture, as written; empty: NVIDIA's
  std::string arch{};            // AMD's second attribute of that kind, as written

  bool operator==(const GpuInfo&) const = default;
};

struct NicInfo {
  std::int32_t device = -1;
  std::string guid{};
  double megabits_per_s = 0;
  std::int32_t port = 1;
  double latency_us = 0;
  std::int64_t max_connections = 0;
  std::optional<bool> direct{};  // GPUDirect RDMA
  bool collective = false;       // reduces in the network

  bool operator==(const NicInfo&) const = default;
};

struct GraphNode {
  NodeKind kind = NodeKind::kCpu;
  std::string name{};      // unique in the graph: "cpu0", "gpu3", "pci 0000:3b:00.0", "nvswitch", "mlx5_0"
  CpuInfo cpu{};           // of kCpu
  PciInfo pci{};           // of kPci, kGpu, kNic
  GpuInfo gpu{};           // of kGpu
  NicInfo nic{};           // of kNic
  std::int32_t numa = -1;  // of kCpu: its number

  bool operator==(const GraphNode&) const = default;
};

struct GraphLink {
  std::uint32_t from = 0;  // index into nodes; a PCI link goes from the part nearer to the CPU
  std::uint32_t to = 0;
  LinkKind kind = LinkKind::kPci;
  std::uint32_t count = 1;  // physical links in parallel
  double gbytes_per_s = 0;  // of all of them, in each direction; > 0

  bool operator==(const GraphLink&) const = default;
};

struct Graph {
  std::string name{};  // for people: of the file or of the shape
  std::vector<GraphNode> nodes{};
  std::vector<GraphLink> links{};

  bool operator==(const Graph&) const = default;
};

// Both for building a graph part by part. The index of the new node, which has nothing but kind and name yet.
std::uint32_t add_node(Graph& graph, NodeKind kind, std::string name);
// Of `count` links in parallel, `gbytes_per_s` together; both ends must be there, and differ.
void add_link(Graph& graph, std::uint32_t from, std::uint32_t to, LinkKind kind, std::uint32_t count,
              double gbytes_per_s);

// Indices of the nodes of one kind; GPUs and NICs in the order of their device numbers, CPUs by NUMA number.
std::vector<std::uint32_t> nodes_of(const Graph& graph, NodeKind kind);

// One link in one direction.
struct Hop {
  std::uint32_t link = 0;  // index into Graph::links
  bool reversed = false;   // from `to` to `from`

  bool operator==(const Hop&) const = default;
};

struct Path {
  PathType type = PathType::kDis;
  double gbytes_per_s = 0;  // of the narrowest link; infinite for kLoc
  std::vector<Hop> hops{};

  bool operator==(const Path&) const = default;
};

// All paths from one node, by node index: of the nearest types the widest, of those the one with the fewest hops, of
// those the one through the lowest node numbers. GPUs carry no traffic between CPUs or PCI switches; between GPUs one
// GPU may relay (kNvb), and kPxn is never found here. The same there and back in type and bandwidth. O(links * distinct
// bandwidths).
std::vector<Path> paths_from(const Graph& graph, std::uint32_t node);

std::string_view to_string(NodeKind kind);  // "cpu", "pci", ...
std::string_view to_string(LinkKind kind);  // "NVLink", "xGMI", ...
std::string_view to_string(PathType type);  // "NVL", "PIX", ...

}  // namespace tutti
