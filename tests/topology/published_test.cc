// Tests with every published topology file, if the data folder exists: the parts that are read, the findings of the
// linter, and that no information is lost when the file is written again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <pugixml.hpp>
#include <span>
#include <string>

#include "topology/xml/values.h"
#include "topology/xml/xml.h"
#include "xml_files.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

// The expected contents of a file: numbers of parts and findings, and properties of the links and paths of GPU 0.
struct Golden {
  std::size_t cpus, switches, gpus, nics;
  std::size_t nvlinks;   // pairs of parts that are connected by NVLink or xGMI
  double nvlink_gbytes;  // bandwidth of the first such pair
  PathType gpu0_to_gpu1;
  PathType gpu0_to_nic0;
  std::size_t warnings, notes;
};

const std::map<std::string, Golden>& goldens() {
  static const std::map<std::string, Golden> all{
      {"aws-g5.48xl.xml", {2, 9, 0, 0, 0, 0, PathType::kDis, PathType::kDis, 10, 2}},
      {"aws-p4d.24xl.xml", {2, 4, 8, 4, 0, 0, PathType::kPix, PathType::kPix, 0, 2}},
      {"azure-ncv4.xml", {4, 0, 4, 1, 0, 0, PathType::kSys, PathType::kPhb, 4, 0}},
      {"azure-ndv2.xml", {2, 0, 8, 1, 0, 0, PathType::kPhb, PathType::kPhb, 0, 2}},
      {"azure-ndv4.xml", {4, 4, 8, 8, 0, 0, PathType::kPix, PathType::kPix, 0, 2}},
      {"oci-h100.xml", {2, 32, 8, 16, 8, 18 * 20.6, PathType::kNvl, PathType::kPxb, 8, 0}},
      {"rccl-16p1h.xml", {4, 28, 16, 8, 28, 144, PathType::kNvl, PathType::kPxb, 0, 0}},
      {"rccl-4p2h.xml", {1, 10, 8, 1, 8, 24, PathType::kNvl, PathType::kPxb, 0, 0}},
      {"rccl-4p3l_2h.xml", {4, 8, 8, 1, 12, 24, PathType::kNvl, PathType::kSys, 0, 0}},
      {"rccl-8p6l_4nic.xml", {2, 8, 8, 4, 24, 24, PathType::kNvl, PathType::kPhb, 0, 0}},
      {"rccl-8p_90a.xml", {1, 1, 8, 1, 12, 36, PathType::kNvl, PathType::kPhb, 0, 0}},
      {"rccl-8p_pcie.xml", {1, 10, 8, 1, 0, 0, PathType::kPxb, PathType::kPxb, 0, 0}},
      {"rccl-8p_rome_4nics.xml", {4, 20, 8, 4, 12, 24, PathType::kNvl, PathType::kPxb, 0, 0}},
  };
  return all;
}

void expect_golden(const std::string& name, const XmlReading& reading, const Golden& golden) {
  const Graph& graph = reading.graph;
  EXPECT_EQ(nodes_of(graph, NodeKind::kCpu).size(), golden.cpus);
  EXPECT_EQ(nodes_of(graph, NodeKind::kPci).size(), golden.switches);
  const auto gpus = nodes_of(graph, NodeKind::kGpu);
  const auto nics = nodes_of(graph, NodeKind::kNic);
  EXPECT_EQ(gpus.size(), golden.gpus);
  EXPECT_EQ(nics.size(), golden.nics);
  std::size_t pairs = 0;
  double gbytes = 0;
  for (const GraphLink& link : graph.links) {
    if (link.kind != LinkKind::kNvLink && link.kind != LinkKind::kXgmi) continue;
    if (pairs++ == 0) gbytes = link.gbytes_per_s;
  }
  EXPECT_EQ(pairs, golden.nvlinks);
  EXPECT_DOUBLE_EQ(gbytes, golden.nvlink_gbytes);
  const auto path = [&](std::span<const std::uint32_t> to, std::size_t i) {
    return gpus.empty() || to.size() <= i ? PathType::kDis : paths_from(graph, gpus[0])[to[i]].type;
  };
  EXPECT_EQ(to_string(path(gpus, 1)), to_string(golden.gpu0_to_gpu1));
  EXPECT_EQ(to_string(path(nics, 0)), to_string(golden.gpu0_to_nic0));
  std::map<Severity, std::size_t> counts;
  std::string all;
  for (const Finding& finding : reading.findings) {
    ++counts[finding.severity];
    all += to_string(finding) + "\n";
  }
  EXPECT_EQ(counts[Severity::kError], 0U) << name << "\n" << all;
  EXPECT_EQ(counts[Severity::kWarning], golden.warnings) << name << "\n" << all;
  EXPECT_EQ(counts[Severity::kNote], golden.notes) << name << "\n" << all;
}

// Returns the meaning of an NCCL attribute, independent of how the value is written.
std::string meaning(std::string_view attribute, const std::string& value) {
  if (attribute == "link_speed") return std::to_string(parse_link_speed(value).value_or(0));
  if (attribute == "speed" || attribute == "latency" || attribute == "link_width") {
    return std::to_string(parse_real(value).value_or(0));
  }
  return value;
}

// Collects the attributes of each element, with a key that identifies the element. NVSwitches are left out, because
// all of them are written as one.
using AttributesByElement = std::map<std::string, std::map<std::string, std::string>>;
void collect(const pugi::xml_node& node, const std::string& where, AttributesByElement& collected) {
  for (const pugi::xml_node& child : node.children()) {
    const std::string name = child.name();
    if (name.empty() || std::string(child.attribute("tclass").value()) == "0x068000") continue;
    std::string key = where;
    for (const char* by : {"numaid", "busid", "target"}) {
      if (child.attribute(by)) key = name + " " + child.attribute(by).value();
    }
    if (name == "net") key = std::string("net ") + child.attribute("name").value();
    if (name == "xgmi") key += " of " + where;
    if (name == "gpu") key = "gpu of " + where;
    for (const auto& attribute : child.attributes()) {
      const std::string value = meaning(attribute.name(), attribute.value());
      if (!std::string(attribute.value()).empty()) collected[key][attribute.name()] = value;
    }
    collect(child, key, collected);
  }
}

TEST(Published, EveryFileIsReadAsItIs) {
  const auto files = testing::published_topologies(TUTTI_SOURCE_DIR);
  if (files.empty()) GTEST_SKIP() << "no folder with published topologies; name its parent in TUTTI_SHARED_DATA";
  std::size_t known = 0;
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename());
    const XmlReading reading = read_xml(testing::contents(file));
    const auto golden = goldens().find(file.filename());
    if (golden == goldens().end()) continue;  // the graph file, and files that were added later
    ++known;
    expect_golden(file.filename(), reading, golden->second);
    const Result<std::string> written = to_xml(reading.graph);
    ASSERT_TRUE(written) << to_string(written.error());
    EXPECT_EQ(*parse_xml(*written), reading.graph);
  }
  EXPECT_EQ(known, goldens().size());
}

TEST(Published, NothingThatAFileSaysIsLost) {
  const auto files = testing::published_topologies(TUTTI_SOURCE_DIR);
  if (files.empty()) GTEST_SKIP() << "no folder with published topologies; name its parent in TUTTI_SHARED_DATA";
  std::size_t compared = 0;
  for (const auto& file : files) {
    const std::string text = testing::contents(file);
    const Result<Graph> graph = parse_xml(text);
    if (!graph) continue;
    pugi::xml_document before;
    pugi::xml_document after;
    ASSERT_TRUE(before.load_string(text.c_str()));
    ASSERT_TRUE(after.load_string(to_xml(*graph)->c_str()));
    AttributesByElement original;
    AttributesByElement kept;
    collect(before.document_element(), "system", original);
    collect(after.document_element(), "system", kept);
    for (const auto& [element, attributes] : original) {
      for (const auto& [attribute, value] : attributes) {
        // An NVLink from a GPU to itself. The linter reports that it is ignored.
        if (element.starts_with("nvlink")) continue;
        const std::string otherwise = meaning(attribute, "0");
        const auto found = kept[element].find(attribute);
        EXPECT_EQ(found == kept[element].end() ? otherwise : found->second, value)
            << file.filename() << ": " << element << " " << attribute;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 2'000U);
}

TEST(Published, AFileOfRingsIsNotTakenForAMachine) {
  for (const auto& file : testing::published_topologies(TUTTI_SOURCE_DIR)) {
    if (file.filename() != "azure-ncv4-graph.xml") continue;
    EXPECT_THAT(parse_xml(testing::contents(file)).error().message, HasSubstr("rings and trees"));
    return;
  }
  GTEST_SKIP() << "no folder with published topologies; name its parent in TUTTI_SHARED_DATA";
}

}  // namespace
}  // namespace tutti
