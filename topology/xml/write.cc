// Writes graphs in NCCL's XML format. A file lists the parts in the order of a walk over the PCI tree, so the graph
// is first sorted into that order.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/assert.h"
#include "topology/speeds.h"
#include "topology/xml/draft.h"
#include "topology/xml/xml.h"

namespace tutti {
namespace {

constexpr std::uint32_t kNone = ~0U;
constexpr std::string_view kUnknownSwitch = "fffffff:ffff:ff";  // NCCL writes this for a switch that it cannot name

Error unsupported(std::string message) {
  return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, std::move(message) + "; NCCL's format cannot express it"};
}

// The CPUs in the order of their nodes, and not of their NUMA numbers, because a file may list CPUs in any order and
// reading and writing it must not change this order.
std::vector<std::uint32_t> cpus_of(const Graph& graph) {
  std::vector<std::uint32_t> cpus = nodes_of(graph, NodeKind::kCpu);
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// Selects the PCI links that form a tree below the CPUs. Returns for each node the index of the link that leads down
// to it, or kNone for CPUs and for nodes that no PCI links connect to a CPU.
std::vector<std::uint32_t> tree_links(const Graph& graph) {
  std::vector<std::uint32_t> link_to(graph.nodes.size(), kNone);
  std::vector<std::vector<std::uint32_t>> down(graph.nodes.size());
  for (std::uint32_t i = 0; i < graph.links.size(); ++i) {
    if (graph.links[i].kind == LinkKind::kPci) down[graph.links[i].from].push_back(i);
  }
  std::vector<std::uint32_t> open = cpus_of(graph);
  for (std::size_t i = 0; i < open.size(); ++i) {
    for (const std::uint32_t link : down[open[i]]) {
      const std::uint32_t to = graph.links[link].to;
      if (link_to[to] != kNone || graph.nodes[to].kind == NodeKind::kCpu) continue;
      link_to[to] = link;
      open.push_back(to);
    }
  }
  return link_to;
}

std::vector<std::vector<std::uint32_t>> children_of(const Graph& graph, const std::vector<std::uint32_t>& link_to) {
  std::vector<std::vector<std::uint32_t>> children(graph.nodes.size());
  for (std::uint32_t node = 0; node < graph.nodes.size(); ++node) {
    if (link_to[node] != kNone) children[graph.links[link_to[node]].from].push_back(node);
  }
  return children;
}

std::vector<std::uint32_t> file_order(const Graph& graph, const std::vector<std::uint32_t>& link_to) {
  const auto children = children_of(graph, link_to);
  std::vector<std::uint32_t> order;
  std::vector<bool> listed(graph.nodes.size(), false);
  for (const std::uint32_t cpu : cpus_of(graph)) {
    std::vector<std::uint32_t> open{cpu};
    while (!open.empty()) {
      const std::uint32_t node = open.back();
      open.pop_back();
      order.push_back(node);
      listed[node] = true;
      open.insert(open.end(), children[node].rbegin(), children[node].rend());
    }
  }
  for (std::uint32_t node = 0; node < graph.nodes.size(); ++node) {
    if (!listed[node]) order.push_back(node);
  }
  return order;
}

class Writer {
 public:
  explicit Writer(const Graph& graph)  // `graph` must be in the order that in_file_order() gives
      : graph_(graph), link_to_(tree_links(graph)), children_(children_of(graph, link_to_)) {
    for (std::uint32_t i = 0; i < graph.links.size(); ++i) {
      if (link_to_[graph.links[i].to] == i) continue;
      others_[graph.links[i].from].push_back(i);
      others_[graph.links[i].to].push_back(i);
    }
  }

  Result<std::string> write() {
    TUTTI_TRY(check());
    const bool amd = std::any_of(graph_.links.begin(), graph_.links.end(),
                                 [](const GraphLink& link) { return link.kind == LinkKind::kXgmi; });
    text_ = fmt::format("<system version=\"{}\"", amd ? 2 : 1);
    attribute("tutti_name", graph_.name);
    listed_ = !has_default_cpu_links();
    if (listed_) attribute("tutti_cpulinks", "listed");
    text_ += ">\n";
    for (const std::uint32_t cpu : cpus_of(graph_)) write_cpu(cpu);
    text_ += "</system>\n";
    return std::move(text_);
  }

 private:
  Status check() const {
    for (std::uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const GraphNode& node = graph_.nodes[i];
      const bool placed = node.kind == NodeKind::kCpu || node.kind == NodeKind::kNvSwitch || link_to_[i] != kNone;
      if (!placed) return unsupported(fmt::format("no CPU leads to {} by PCI", node.name));
      const bool device = node.kind == NodeKind::kPci || node.kind == NodeKind::kGpu;
      if (device && node.pci.bus_id.empty()) return unsupported(fmt::format("{} has no PCI bus id", node.name));
    }
    return {};
  }

  bool has_default_cpu_links() const {
    std::map<std::pair<std::uint32_t, std::uint32_t>, double> links;
    for (const GraphLink& link : graph_.links) {
      if (link.kind != LinkKind::kCpu) continue;
      if (link.count != 1 || !links.emplace(std::minmax(link.from, link.to), link.gbytes_per_s).second) return false;
    }
    const std::vector<std::uint32_t> cpus = nodes_of(graph_, NodeKind::kCpu);
    if (links.size() != cpus.size() * (cpus.size() - std::min<std::size_t>(cpus.size(), 1)) / 2) return false;
    return std::all_of(links.begin(), links.end(), [&](const auto& link) {
      return link.second == std::min(cpu_link_gbytes_per_s(graph_.nodes[link.first.first].cpu),
                                     cpu_link_gbytes_per_s(graph_.nodes[link.first.second].cpu));
    });
  }

  void attribute(std::string_view name, std::string_view value) {
    if (value.empty()) return;
    text_ += fmt::format(" {}=\"", name);
    for (const char letter : value) {
      switch (letter) {
        case '&': text_ += "&amp;"; break;
        case '<': text_ += "&lt;"; break;
        case '>': text_ += "&gt;"; break;
        case '"': text_ += "&quot;"; break;
        case '\n':
        case '\r':
        case '\t': text_ += fmt::format("&#{};", static_cast<int>(letter)); break;
        default: text_ += letter;
      }
    }
    text_ += '"';
  }

  template <class Number>
  void number(std::string_view name, Number value) {
    text_ += fmt::format(" {}=\"{}\"", name, value);
  }

  void hexadecimal(std::string_view name, std::uint32_t value, int digits) {
    if (value != 0) text_ += fmt::format(" {}=\"0x{:0{}x}\"", name, value, digits);
  }

  void open(std::size_t depth, std::string_view element) {
    text_.append(2 * depth, ' ');
    text_ += fmt::format("<{}", element);
  }

  void close(std::size_t depth, std::string_view element) {
    text_.append(2 * depth, ' ');
    text_ += fmt::format("</{}>\n", element);
  }

  void write_cpu(std::uint32_t node) {
    const CpuInfo& cpu = graph_.nodes[node].cpu;
    open(1, "cpu");
    number("numaid", graph_.nodes[node].numa);
    attribute("affinity", cpu.affinity);
    attribute("arch", cpu.arch);
    attribute("vendor", cpu.vendor);
    if (cpu.family != 0) number("familyid", cpu.family);
    if (cpu.model != 0) number("modelid", cpu.model);
    own_name(node, fmt::format("cpu{}", std::max(graph_.nodes[node].numa, 0)));
    text_ += ">\n";
    write_beneath(node, 2);
    for (const std::uint32_t index : listed_ ? others_[node] : std::vector<std::uint32_t>{}) {
      const GraphLink& link = graph_.links[index];
      if (link.kind != LinkKind::kCpu || link.from != node) continue;
      open(2, "tutti_cpulink");
      number("target", graph_.nodes[link.to].numa);
      if (link.count != 1) number("count", link.count);
      number("gbytes_per_s", link.gbytes_per_s);
      text_ += "/>\n";
    }
    close(1, "cpu");
  }

  void own_name(std::uint32_t node, std::string_view otherwise) {
    if (graph_.nodes[node].name != otherwise) attribute("tutti_name", graph_.nodes[node].name);
  }

  void write_beneath(std::uint32_t node, std::size_t depth) {
    std::vector<std::uint32_t> ports;  // consecutive ports that are no PCI devices of their own are in one <nic>
    for (const std::uint32_t child : children_[node]) {
      if (graph_.nodes[child].kind == NodeKind::kNic && graph_.nodes[child].pci.bus_id.empty()) {
        ports.push_back(child);
      } else {
        write_ports(ports, depth);
        write_pci(child, depth);
      }
    }
    write_ports(ports, depth);
  }

  void write_ports(std::vector<std::uint32_t>& ports, std::size_t depth) {
    if (ports.empty()) return;
    open(depth, "nic>\n");
    for (const std::uint32_t port : ports) {
      const GraphNode& above = graph_.nodes[graph_.links[link_to_[port]].from];
      const double speed = graph_.nodes[port].nic.megabits_per_s / 8'000;
      write_net(port, depth + 1, above.kind == NodeKind::kPci || speed == 0 ? pci_gbytes_per_s(above.pci) : speed);
    }
    close(depth, "nic");
    ports.clear();
  }

  // Writes the bandwidth of the tree link to `node` if it differs from `otherwise`, the bandwidth that a reader of
  // the file computes from the other attributes.
  void own_bandwidth(std::uint32_t node, double otherwise) {
    const double gbytes = graph_.links[link_to_[node]].gbytes_per_s;
    if (gbytes != otherwise) number("tutti_gbytes_per_s", gbytes);
  }

  void write_pci(std::uint32_t index, std::size_t depth) {
    const GraphNode& node = graph_.nodes[index];
    const PciInfo& pci = node.pci;
    open(depth, "pci");
    attribute("busid", pci.bus_id);
    hexadecimal("class", pci.device_class, 6);
    hexadecimal("vendor", pci.vendor, 4);
    hexadecimal("device", pci.device, 4);
    hexadecimal("subsystem_vendor", pci.subsystem_vendor, 4);
    hexadecimal("subsystem_device", pci.subsystem_device, 4);
    if (pci.gigatransfers_per_s != 0) text_ += fmt::format(" link_speed=\"{} GT/s\"", pci.gigatransfers_per_s);
    if (pci.width != 0) number("link_width", pci.width);
    if (node.kind == NodeKind::kPci) own_name(index, "pci " + pci.bus_id);
    if (node.kind == NodeKind::kGpu) own_name(index, fmt::format("gpu{}", node.gpu.device));
    // For a NIC, write_net() writes name and bandwidth into the <net>, because read_xml() reads them there.
    if (node.kind != NodeKind::kNic) own_bandwidth(index, pci_gbytes_per_s(pci));
    text_ += ">\n";
    if (node.kind == NodeKind::kGpu) write_gpu(index, depth + 1);
    if (node.kind == NodeKind::kNic) {
      open(depth + 1, "nic>\n");
      write_net(index, depth + 2, pci_gbytes_per_s(pci));
      close(depth + 1, "nic");
    }
    if (node.kind == NodeKind::kPci) write_beneath(index, depth + 1);
    for (const std::uint32_t other : others_[index]) {
      const GraphLink& link = graph_.links[other];
      if (link.kind == LinkKind::kPci && link.from == index) {
        open(depth + 1, "pcilink");
        attribute("target", graph_.nodes[link.to].pci.bus_id);
        text_ += "/>\n";
      }
    }
    close(depth, "pci");
  }

  void write_net(std::uint32_t index, std::size_t depth, double bandwidth) {
    const NicInfo& nic = graph_.nodes[index].nic;
    open(depth, "net");
    attribute("name", graph_.nodes[index].name);
    number("dev", nic.device);
    if (nic.megabits_per_s != 0) number("speed", nic.megabits_per_s);
    number("port", nic.port);
    if (nic.latency_us != 0) number("latency", nic.latency_us);
    attribute("guid", nic.guid);
    if (nic.max_connections != 0) number("maxconn", nic.max_connections);
    if (nic.direct) number("gdr", *nic.direct ? 1 : 0);
    if (nic.collective) number("coll", 1);
    own_bandwidth(index, bandwidth);
    text_ += "/>\n";
  }

  void write_gpu(std::uint32_t index, std::size_t depth) {
    const GpuInfo& gpu = graph_.nodes[index].gpu;
    open(depth, "gpu");
    number("dev", gpu.device);
    if (gpu.capability != 0) number("sm", gpu.capability);
    attribute("gcn", gpu.gcn);
    attribute("arch", gpu.arch);
    if (gpu.rank >= 0) number("rank", gpu.rank);
    if (gpu.direct) number("gdr", *gpu.direct ? 1 : 0);
    text_ += ">\n";
    for (const std::uint32_t other : others_[index]) write_gpu_link(index, graph_.links[other], depth + 1);
    close(depth, "gpu");
  }

  void write_gpu_link(std::uint32_t index, const GraphLink& link, std::size_t depth) {
    const GraphNode& to = graph_.nodes[link.from == index ? link.to : link.from];
    if (link.kind == LinkKind::kC2c) {
      open(depth, "c2c");
      number("bw", link.gbytes_per_s * 1'000 / link.count);
      number("count", link.count);
      // A reader computes bw * count / 1000. If a rounding error makes this differ from the bandwidth, write that, too.
      if (link.gbytes_per_s * 1'000 / link.count * link.count / 1'000 != link.gbytes_per_s) {
        number("tutti_gbytes_per_s", link.gbytes_per_s);
      }
      text_ += "/>\n";
      return;
    }
    open(depth, link.kind == LinkKind::kXgmi ? "xgmi" : "nvlink");
    const bool gpu = to.kind == NodeKind::kGpu;
    attribute("target", gpu || !to.pci.bus_id.empty() ? std::string_view(to.pci.bus_id) : kUnknownSwitch);
    number("count", link.count);
    const std::uint32_t gpu_class = to.pci.device_class != 0 ? to.pci.device_class : 0x030200;
    hexadecimal("tclass", gpu ? gpu_class : to.kind == NodeKind::kCpu ? 0x068001 : 0x068000, 6);
    if (link.gbytes_per_s != default_gbytes(index, to, link)) number("tutti_gbytes_per_s", link.gbytes_per_s);
    text_ += "/>\n";
  }

  double default_gbytes(std::uint32_t index, const GraphNode& to, const GraphLink& link) const {
    const auto one = [&](const GraphNode& node) {
      return link.kind == LinkKind::kXgmi ? xgmi_gbytes_per_s(node.gpu.gcn) : nvlink_gbytes_per_s(node.gpu.capability);
    };
    const double here = one(graph_.nodes[index]);
    return link.count * (to.kind == NodeKind::kGpu ? std::min(here, one(to)) : here);
  }

  const Graph& graph_;
  std::vector<std::uint32_t> link_to_;
  std::vector<std::vector<std::uint32_t>> children_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> others_;  // for each node: its links that are not in the tree
  std::string text_;
  bool listed_ = false;
};

}  // namespace

void sort_links(Graph& graph) {
  const auto key = [](const GraphLink& link) {
    const bool tree = link.kind == LinkKind::kPci && link.from < link.to;
    const int group = tree ? 0 : link.kind == LinkKind::kPci ? 1 : 2 + static_cast<int>(link.kind);
    return std::make_tuple(group, tree ? link.to : link.from, tree ? link.from : link.to, link.count,
                           link.gbytes_per_s);
  };
  std::sort(graph.links.begin(), graph.links.end(),
            [&](const GraphLink& a, const GraphLink& b) { return key(a) < key(b); });
}

Graph in_file_order(const Graph& graph) {
  const std::vector<std::uint32_t> link_to = tree_links(graph);
  const std::vector<std::uint32_t> order = file_order(graph, link_to);
  std::vector<std::uint32_t> new_index(order.size());
  Graph sorted;
  sorted.name = graph.name;
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    new_index[order[i]] = i;
    sorted.nodes.push_back(graph.nodes[order[i]]);
  }
  for (std::uint32_t i = 0; i < graph.links.size(); ++i) {
    GraphLink link = graph.links[i];
    const bool tree = link_to[link.to] == i;
    link.from = new_index[link.from];
    link.to = new_index[link.to];
    // A PCI link that is not in the tree leads from the higher to the lower node number, all other links from the
    // lower to the higher number (as in links.cc).
    const bool up = !tree && link.kind == LinkKind::kPci;
    if (up ? link.from < link.to : link.from > link.to) std::swap(link.from, link.to);
    sorted.links.push_back(link);
  }
  sort_links(sorted);
  return sorted;
}

Result<std::string> to_xml(const Graph& graph) {
  const Graph sorted = in_file_order(graph);
  Result<std::string> text = Writer(sorted).write();
  TUTTI_TRY(text);
  const Result<Graph> again = parse_xml(*text);
  if (!again)
    return unsupported(fmt::format("the graph {} cannot be read again ({})", graph.name, again.error().message));
  for (std::size_t i = 0; i < std::min(sorted.nodes.size(), again->nodes.size()); ++i) {
    if (sorted.nodes[i] != again->nodes[i]) return unsupported(fmt::format("what {} is", sorted.nodes[i].name));
  }
  if (*again != sorted) return unsupported(fmt::format("one of the links of the graph {}", graph.name));
  return text;
}

}  // namespace tutti
