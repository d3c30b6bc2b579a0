// Tests of reading and writing NCCL's topology files, and that a written file gives the same graph when it is read
// again.
#include "topology/xml/xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "topology/cluster.h"
#include "xml_files.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kSkeleton;
using testing::kTwoSockets;
using testing::kXgmi;

Graph parsed(const std::string& text) {
  Result<Graph> graph = parse_xml(text);
  EXPECT_TRUE(graph) << to_string(graph.error());
  return graph ? *graph : Graph{};
}

std::uint32_t index_of(const Graph& graph, std::string_view name) {
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].name == name) return i;
  }
  ADD_FAILURE() << "no node " << name;
  return 0;
}

const GraphLink* find_link(const Graph& graph, std::string_view one, std::string_view other, LinkKind kind) {
  const std::uint32_t a = index_of(graph, one);
  const std::uint32_t b = index_of(graph, other);
  const auto found = std::find_if(graph.links.begin(), graph.links.end(), [&](const GraphLink& link) {
    return link.kind == kind && ((link.from == a && link.to == b) || (link.from == b && link.to == a));
  });
  return found == graph.links.end() ? nullptr : &*found;
}

TEST(Xml, ReadsEveryPartOfAMachine) {
  const Graph graph = parsed(kTwoSockets);
  EXPECT_EQ(nodes_of(graph, NodeKind::kCpu).size(), 2U);
  EXPECT_EQ(nodes_of(graph, NodeKind::kGpu).size(), 3U);
  EXPECT_EQ(nodes_of(graph, NodeKind::kNic).size(), 4U);
  EXPECT_EQ(nodes_of(graph, NodeKind::kPci).size(), 3U);  // two switches and the NIC with two ports
  EXPECT_EQ(nodes_of(graph, NodeKind::kNvSwitch).size(), 1U);
  const GraphNode& cpu = graph.nodes[index_of(graph, "cpu1")];
  EXPECT_EQ(cpu.numa, 1);
  EXPECT_EQ(cpu.cpu, (CpuInfo{"ffff0000", "x86_64", "GenuineIntel", 6, 143}));
  const GraphNode& gpu = graph.nodes[index_of(graph, "gpu0")];
  EXPECT_EQ(gpu.gpu, (GpuInfo{0, 0, 90, true, "", ""}));
  EXPECT_EQ(gpu.pci, (PciInfo{"0000:11:00.0", 0x030200, 0x10de, 0x2330, 0, 0, 32, 16}));
  const GraphNode& nic = graph.nodes[index_of(graph, "mlx5_0")];
  EXPECT_EQ(nic.nic, (NicInfo{0, "0x1", 400'000, 1, 0, 131'072, true, false}));
  EXPECT_EQ(nic.pci.device_class, 0x020700U);
}

TEST(Xml, LinksCarryWhatTheirKindAndCountSay) {
  const Graph graph = parsed(kTwoSockets);
  EXPECT_DOUBLE_EQ(find_link(graph, "gpu0", "gpu1", LinkKind::kNvLink)->gbytes_per_s, 4 * 20.6);
  const GraphLink* to_switch = find_link(graph, "gpu0", "nvswitch", LinkKind::kNvLink);
  EXPECT_EQ(to_switch->count, 14U);  // two switches become one node
  EXPECT_DOUBLE_EQ(to_switch->gbytes_per_s, 14 * 20.6);
  EXPECT_DOUBLE_EQ(find_link(graph, "pci 0000:10:00.0", "gpu0", LinkKind::kPci)->gbytes_per_s, 48);
  EXPECT_DOUBLE_EQ(find_link(graph, "cpu1", "pci 0000:90:00.0", LinkKind::kPci)->gbytes_per_s, 24);
  EXPECT_DOUBLE_EQ(find_link(graph, "pci 0000:92:00.0", "mlx5_2", LinkKind::kPci)->gbytes_per_s, 12);
  EXPECT_DOUBLE_EQ(find_link(graph, "cpu1", "gpu2", LinkKind::kC2c)->gbytes_per_s, 50);
  EXPECT_DOUBLE_EQ(find_link(graph, "cpu0", "cpu1", LinkKind::kCpu)->gbytes_per_s, 22);
  EXPECT_DOUBLE_EQ(find_link(graph, "cpu1", "eth0", LinkKind::kPci)->gbytes_per_s, 25.0 / 8);
  EXPECT_EQ(find_link(graph, "cpu0", "eth0", LinkKind::kPci), nullptr);
}

TEST(Xml, PathsHaveNcclsNames) {
  const Graph graph = parsed(kTwoSockets);
  const auto paths = paths_from(graph, index_of(graph, "gpu0"));
  EXPECT_EQ(paths[index_of(graph, "gpu1")].type, PathType::kNvl);
  EXPECT_EQ(paths[index_of(graph, "gpu2")].type, PathType::kSys);
  EXPECT_EQ(paths[index_of(graph, "mlx5_0")].type, PathType::kPix);
  EXPECT_EQ(paths[index_of(graph, "cpu0")].type, PathType::kPhb);
  EXPECT_EQ(paths[index_of(graph, "eth0")].type, PathType::kSys);
  // A NIC with several ports does not count as a second switch, from either end of the path.
  const std::uint32_t gpu = index_of(graph, "gpu2");
  const std::uint32_t port = index_of(graph, "mlx5_2");
  EXPECT_EQ(paths_from(graph, gpu)[port].type, PathType::kPix);
  EXPECT_EQ(paths_from(graph, port)[gpu].type, PathType::kPix);
}

TEST(Xml, ReadsAmdsFiles) {
  const Graph graph = parsed(kXgmi);
  EXPECT_EQ(graph.nodes[index_of(graph, "gpu1")].gpu.gcn, "910");
  EXPECT_EQ(graph.nodes[index_of(graph, "gpu1")].pci.bus_id, "0000:c5:00.0");  // converted to lower case
  const GraphLink* link = find_link(graph, "gpu0", "gpu1", LinkKind::kXgmi);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->count, 2U);
  EXPECT_DOUBLE_EQ(link->gbytes_per_s, 72);
  EXPECT_THAT(*to_xml(graph), HasSubstr("<system version=\"2\">"));
}

TEST(Xml, SkeletonsAreKnownByClassAndNumberedByBusId) {
  const Graph graph = parsed(kSkeleton);
  EXPECT_EQ(graph.nodes[index_of(graph, "gpu0")].pci.bus_id, "0001:00:00.0");
  EXPECT_EQ(graph.nodes[index_of(graph, "gpu1")].pci.bus_id, "0003:00:00.0");
  EXPECT_EQ(graph.nodes[index_of(graph, "nic 0101:00:00.0")].nic.device, 0);
}

TEST(Xml, LinkSpeedsAreTakenInEveryForm) {
  for (const std::string form : {"16 GT/s", "16.0 GT/s PCIe", "16.0 GT/s", "16GT/s", "16"}) {
    std::string text = kSkeleton;
    text.replace(text.find("16 GT/s"), 7, form);
    const Graph graph = parsed(text);
    EXPECT_EQ(graph.nodes[index_of(graph, "pci ffff:ff:01.0")].pci.gigatransfers_per_s, 16) << form;
  }
}

TEST(Xml, WhatIsWrittenReadsTheSame) {
  for (const std::string& text : {kTwoSockets, kXgmi, kSkeleton}) {
    const Graph graph = parsed(text);
    EXPECT_EQ(graph, in_file_order(graph));
    const Result<std::string> written = to_xml(graph);
    ASSERT_TRUE(written) << to_string(written.error());
    EXPECT_EQ(parsed(*written), graph) << *written;
  }
}

TEST(Xml, EveryShapeIsWrittenAndReadAgain) {
  for (const std::string& name : shape_names()) {
    ShapeOptions options;
    options.name = name;
    const Result<Cluster> cluster = make_shape(options);
    ASSERT_TRUE(cluster);
    const Result<std::string> written = to_xml(cluster->machine);
    ASSERT_TRUE(written) << name << ": " << to_string(written.error());
    const Graph again = parsed(*written);
    EXPECT_EQ(again, in_file_order(cluster->machine)) << *written;
    EXPECT_EQ(again.nodes.size(), cluster->machine.nodes.size());
    EXPECT_EQ(again.links.size(), cluster->machine.links.size());
    EXPECT_EQ(again.name, name);
  }
}

TEST(Xml, WhatNcclsFormatCannotSayIsWrittenBesideIt) {
  Graph graph = parsed(kTwoSockets);
  graph.name = "mine & \"yours\" <1>";
  graph.nodes[index_of(graph, "gpu1")].name = "the second";
  for (GraphLink& link : graph.links) link.gbytes_per_s *= 1.1;
  const Result<std::string> written = to_xml(graph);
  ASSERT_TRUE(written) << to_string(written.error());
  EXPECT_EQ(parsed(*written), graph) << *written;
  const std::vector<Finding> findings = read_xml(*written).findings;
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings.front());
}

// Found by the fuzzer: a NUMA node with a higher number is first in the file.
TEST(Xml, CpusStandInTheOrderOfTheFile) {
  std::string text = kTwoSockets;
  text.replace(text.find("numaid=\"0\""), 10, "numaid=\"5\"");
  const Graph graph = parsed(text);
  EXPECT_EQ(graph.nodes.front().numa, 5);
  EXPECT_EQ(in_file_order(graph), graph);
  const Result<std::string> written = to_xml(graph);
  ASSERT_TRUE(written) << to_string(written.error());
  EXPECT_EQ(parsed(*written), graph) << *written;
}

TEST(Xml, ASecondWayBetweenSwitchesIsKept) {
  std::string text = kTwoSockets;
  const std::string place = "<pci busid=\"0000:91:00.0\"";
  text.insert(text.find(place), "<pcilink target=\"0000:10:00.0\"/>");
  const Graph graph = parsed(text);
  const GraphLink* link = find_link(graph, "pci 0000:10:00.0", "pci 0000:90:00.0", LinkKind::kPci);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->gbytes_per_s, 24);
  EXPECT_EQ(parsed(*to_xml(graph)), graph);
}

TEST(Xml, AGraphWithoutAPlaceInTheFormatIsRefused) {
  Graph graph = parsed(kSkeleton);
  std::erase_if(graph.links, [&](const GraphLink& link) { return link.to == index_of(graph, "gpu0"); });
  const Result<std::string> written = to_xml(graph);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(written.error().message, HasSubstr("no CPU leads to gpu0"));
  graph = parsed(kSkeleton);
  graph.nodes[index_of(graph, "gpu0")].pci.bus_id.clear();
  EXPECT_THAT(to_xml(graph).error().message, HasSubstr("gpu0 has no PCI bus id"));
  graph = parsed(kSkeleton);
  graph.nodes[index_of(graph, "cpu0")].gpu.rank = 3;
  EXPECT_THAT(to_xml(graph).error().message, HasSubstr("what cpu0 is"));
}

}  // namespace
}  // namespace tutti
