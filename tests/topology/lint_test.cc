// Tests of the linter for topology files: which errors it reports and for which line, and that hostile files do not
// take much time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/support/patience.h"
#include "topology/xml/xml.h"
#include "xml_files.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kSkeleton;
using testing::kTwoSockets;
using testing::kXgmi;

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

// Returns all findings that contain `words`, in one string.
std::string findings_with(const std::string& text, const std::string& words) {
  std::string all;
  for (const Finding& finding : read_xml(text).findings) {
    EXPECT_FALSE(finding.what.empty());
    EXPECT_FALSE(finding.advice.empty());
    const std::string line = to_string(finding);
    if (line.find(words) != std::string::npos) all += line + "\n";
  }
  return all;
}

void expect_error(const std::string& text, const std::string& words, std::uint32_t line) {
  const Result<Graph> graph = parse_xml(text);
  ASSERT_FALSE(graph) << words;
  EXPECT_EQ(graph.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(graph.error().message, HasSubstr(words));
  const std::string place = line > 0 ? "line " + std::to_string(line) + ", " : "line ";
  EXPECT_THAT(graph.error().message, HasSubstr(place));
}

void expect_warning(const std::string& text, const std::string& words, std::uint32_t line) {
  EXPECT_TRUE(parse_xml(text)) << words;
  EXPECT_THAT(findings_with(text, words), HasSubstr("line " + std::to_string(line) + ", "));
  EXPECT_THAT(findings_with(text, words), HasSubstr("warning: "));
}

TEST(Lint, AGoodFileHasNoFindings) {
  for (const std::string& text : {kTwoSockets, kXgmi}) {
    const std::vector<Finding> findings = read_xml(text).findings;
    EXPECT_THAT(findings, IsEmpty()) << to_string(findings.front());
  }
  EXPECT_THAT(findings_with(kSkeleton, "2 GPUs are described by their PCI class only"), HasSubstr("note: "));
  EXPECT_EQ(read_xml(kSkeleton).findings.size(), 2U);
}

TEST(Lint, MissingAndUnknownWordsAreNamed) {
  expect_error(replaced(kTwoSockets, "numaid=\"0\" ", ""), "<cpu> without numaid", 2);
  expect_error(replaced(kTwoSockets, "busid=\"0000:13:00.0\" ", ""), "<pci> without busid", 17);
  expect_error(replaced(kTwoSockets, "count=\"4\"", ""), "<nvlink> without count", 6);
  expect_warning(replaced(kTwoSockets, "link_width", "linkwidth"), "did you mean link_width?", 3);
  expect_warning(replaced(kTwoSockets, "<c2c ", "<c2x "), "unknown element <c2x>", 28);
  expect_error("<system version=\"1\"><gpu dev=\"0\"/></system>", "<gpu> inside <system>; it belongs into <pci>", 1);
  expect_error("<system version=\"1\"/>", "<system> without a <cpu>", 1);
  expect_warning(replaced(kXgmi, " version=\"2\"", ""), "<system> without version", 1);
  expect_warning(replaced(kXgmi, "<cpu ", "some words <cpu "), "text between the elements of <system>", 1);
  EXPECT_THAT(findings_with(replaced(kXgmi, "<cpu ", "<!-- a remark --><cpu "), ""), IsEmpty());
}

TEST(Lint, ValuesOutOfReasonAreErrors) {
  expect_error(replaced(kTwoSockets, "speed=\"400000\"", "speed=\"-400000\""), "speed of <net> is \"-400000\"", 19);
  expect_error(replaced(kTwoSockets, "speed=\"400000\"", "speed=\"fast\""), "speed of <net> is \"fast\"", 19);
  expect_error(replaced(kTwoSockets, "speed=\"400000\"", "speed=\"1e300\""), "speed of <net> is \"1e300\"", 19);
  expect_error(replaced(kTwoSockets, "speed=\"400000\"", "speed=\"inf\""), "speed of <net> is \"inf\"", 19);
  expect_error(replaced(kTwoSockets, "speed=\"400000\"", "speed=\"nan\""), "speed of <net> is \"nan\"", 19);
  expect_warning(replaced(kTwoSockets, "32.0 GT/s PCIe", "31 GT/s"), "31 GT/s, the speed of no generation", 3);
  expect_error(replaced(kTwoSockets, "count=\"4\"", "count=\"-4\""), "count of <nvlink> is \"-4\"", 6);
  expect_error(replaced(kTwoSockets, "class=\"0x060400\"", "class=\"bridge\""), "class of <pci> is \"bridge\"", 3);
  expect_error(replaced(kTwoSockets, "0000:10:00.0", "10:00"), "busid of <pci> is \"10:00\"", 3);
  expect_error(replaced(kTwoSockets, "0000ffff", "cores"), "affinity of cpu0 is not a CPU mask", 2);
  expect_error(replaced(kTwoSockets, "numaid=\"0\"", "numaid=\"zero\""), "numaid of <cpu> is \"zero\"", 2);
  expect_error(replaced(kTwoSockets, "dev=\"0\" sm", "dev=\"x\" sm"), "dev of <gpu> is \"x\"", 5);
  expect_error(replaced(kTwoSockets, "rank=\"0\"", "rank=\"-7\""), "rank of <gpu> is \"-7\"", 5);
  expect_error(replaced(kTwoSockets, "bw=\"25000\"", "bw=\"much\""), "bw of <c2c> is \"much\"", 28);
}

// Wrong values that do not affect the rest of the file. The result must be the machine of the same file without the
// attribute.
TEST(Lint, OfHarmlessWrongValuesItIsSaidWhatIsAssumed) {
  struct Wrong {
    const char* name;
    const char* right;
    const char* wrong;
    const char* assumed;
    std::uint32_t line;
  };
  for (const Wrong& one : {
           Wrong{"familyid", "6", "six", "the family of the CPU is not known", 2},
           Wrong{"modelid", "143", "-1", "the model of the CPU is not known", 2},
           Wrong{"vendor", "0x1000", "Broadcom", "the maker and model of the device are not known", 3},
           Wrong{"device", "0xc030", "0x1c030", "the maker and model of the device are not known", 3},
           Wrong{"link_speed", "32.0 GT/s PCIe", "Unknown", "it is 8 GT/s", 3},
           Wrong{"link_speed", "32.0 GT/s PCIe", "-8 GT/s", "it is 8 GT/s", 3},
           Wrong{"link_width", "16", "255", "it has 16 lanes", 3},
           Wrong{"link_width", "16", "x16", "it has 16 lanes", 3},
           Wrong{"sm", "90", "9.0", "the compute capability is not known", 5},
           Wrong{"gdr", "1", "yes", "the file does not say whether NICs and GPUs reach", 5},
           Wrong{"port", "1", "one", "it is port 1", 19},
           Wrong{"latency", "0.000000", "low", "the latency is not known", 19},
           Wrong{"maxconn", "131072", "-1", "there is no limit", 19},
       }) {
    const std::string attribute = std::string(" ") + one.name + "=\"";
    const std::string good = attribute + one.right + "\"";
    const std::string bad = attribute + one.wrong + "\"";
    const std::string text = replaced(kTwoSockets, good, bad);
    expect_warning(text, std::string(one.name) + " of <", one.line);
    EXPECT_THAT(findings_with(text, one.wrong), HasSubstr(std::string("it is assumed that ") + one.assumed))
        << one.name;
    EXPECT_EQ(*parse_xml(text), *parse_xml(replaced(kTwoSockets, good, ""))) << one.name;
  }
  const std::string number = replaced(kTwoSockets, "dev=\"1\" speed", "dev=\"x\" speed");
  expect_warning(number, "dev of <net> is \"x\"", 33);
  EXPECT_THAT(findings_with(number, "dev of <net>"), HasSubstr("it is assumed that it has no number"));
}

TEST(Lint, WhatIsThereTwiceIsTold) {
  expect_error(replaced(kTwoSockets, "0000:12:00.0\" class", "0000:11:00.0\" class"),
               "bus id 0000:11:00.0 appears twice, first in line 5", 11);
  expect_error(replaced(kTwoSockets, "numaid=\"1\"", "numaid=\"0\""), "NUMA node 0 appears twice, first in line 2", 24);
  expect_error(replaced(kTwoSockets, "dev=\"1\" sm", "dev=\"0\" sm"), "GPU 0 appears twice, first in line 5", 12);
  expect_error(replaced(kTwoSockets, "rank=\"1\"", "rank=\"0\""), "rank 0 appears twice, first in line 5", 12);
  expect_error(replaced(kTwoSockets, "dev=\"0\" sm", "dev=\"0\" dev=\"0\" sm"), "has the attribute dev twice", 5);
  expect_warning(replaced(kTwoSockets, "dev=\"2\" speed", "dev=\"1\" speed"), "NIC 1 appears twice", 34);
  expect_warning(replaced(kTwoSockets, "affinity=\"ffff0000\"", "affinity=\"ffff8000\""), "cpu0 and cpu1 overlap", 24);
  const Graph graph = *parse_xml(replaced(kTwoSockets, "name=\"mlx5_2\"", "name=\"mlx5_1\""));
  EXPECT_EQ(graph.nodes[nodes_of(graph, NodeKind::kNic)[2]].name, "mlx5_1#2");
  std::string hosts = replaced(kTwoSockets, "numaid=\"0\"", "numaid=\"0\" host_hash=\"0x1\"");
  hosts = replaced(hosts, "numaid=\"1\"", "numaid=\"0\" host_hash=\"0x2\"");
  expect_error(hosts, "the file is of several machines", 24);
}

TEST(Lint, LinksThatLeadNowhereAreTold) {
  expect_warning(replaced(kTwoSockets, "target=\"0000:12:00.0\"", "target=\"0000:77:00.0\""),
                 "<nvlink> of gpu0 leads to 0000:77:00.0, which is not a GPU of this file", 6);
  expect_warning(replaced(kTwoSockets, "target=\"0000:12:00.0\"", "target=\"0000:11:00.0\""), "leads to itself", 6);
  expect_warning(replaced(kTwoSockets, "count=\"4\"", "count=\"3\""), "3 links from gpu0 to gpu1, but 4 back", 6);
  expect_warning(replaced(kXgmi, "<xgmi target=\"0000:c5:00.0\" count=\"2\" tclass=\"0x038000\"/>", ""),
                 "2 links from gpu1 to gpu0, but 0 back", 10);
  expect_warning(replaced(kTwoSockets, "<nic>", "<pcilink target=\"0000:10:00.0\"/><nic>"), "<pcilink> at a device",
                 18);
  expect_warning(replaced(kXgmi, "count=\"2\"", "count=\"0\""), "<xgmi> with count 0", 5);
  const std::string lower = "<pci busid=\"0000:91:00.0\"";
  expect_warning(replaced(kTwoSockets, lower, "<pcilink target=\"0000:13:00.0\"/>" + lower), "not another PCI switch",
                 26);
}

TEST(Lint, DevicesThatCannotBeMeantAreTold) {
  expect_warning(replaced(kTwoSockets, "speed=\"400000\"", "speed=\"0\""), "NIC mlx5_0 is dead: its speed is 0", 19);
  expect_warning(replaced(kTwoSockets, "32.0 GT/s PCIe", "5.0 GT/s PCIe"), "carries 7.5 GB/s", 3);
  expect_warning("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:00:16.0\"/></cpu></system>",
                 "PCI device 0000:00:16.0 without a class", 1);
  expect_warning("<system version=\"1\"><cpu numaid=\"0\"/></system>", "no GPU and no NIC is in this file", 1);
  expect_error(replaced(kXgmi, "<gpu ", "<pci busid=\"0000:01:00.0\"/><gpu "), "other devices beneath it", 3);
  std::string apart = replaced(kTwoSockets, "<system ", "<system tutti_cpulinks=\"listed\" ");
  expect_warning(apart, "no path joins gpu0 and gpu2", 27);
}

TEST(Lint, OtherFilesAreToldApart) {
  expect_error("<graphs version=\"1\"/>", "a file of rings and trees", 1);
  expect_error("<html/>", "the outermost element is <html>", 1);
  expect_error("", "this is not XML", 1);
  expect_error("not XML at all", "this is not XML", 1);
  const std::string hwloc =
      "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">";
  expect_error(hwloc, "a topology of hwloc", 1);
  expect_error("<topology>\n<object type=\"Machine\"/></topology>", "a topology of hwloc", 1);
  expect_error("<topology/>", "a topology of hwloc", 1);
  expect_error("<algo\tname=\"ring\"/>", "a collective algorithm of MSCCL", 1);
  expect_error("<algo name=\"ring\" nchunksperloop=\"2\"/>", "a collective algorithm of MSCCL", 1);
  expect_error("{\"name\": \"x\", \"collective\": \"allreduce\"}", "an MSCCL++ execution plan", 1);
  expect_error("\xef\xbb\xbf [1]", "this is JSON", 1);
  expect_error("{}", "tutti topo --write-xml FILE", 1);
  expect_error(kXgmi + kXgmi, "a second outermost element", 15);
}

TEST(Lint, TruncatedFilesNameTheLine) {
  for (std::size_t length = 0; length + 2 < kTwoSockets.size(); ++length) {
    const Result<Graph> graph = parse_xml(kTwoSockets.substr(0, length));
    ASSERT_FALSE(graph) << length;
    EXPECT_THAT(graph.error().message, HasSubstr("line "));
  }
}

TEST(Lint, HostileTextsAreRefusedWithTheirLine) {
  const auto start = std::chrono::steady_clock::now();
  std::string bomb = "<?xml version=\"1.0\"?>\n<!DOCTYPE lolz [<!ENTITY a \"aaaaaaaaaa\">";
  for (char name = 'b'; name <= 'z'; ++name) {
    bomb += std::string("<!ENTITY ") + name + " \"";
    for (int i = 0; i < 10; ++i) bomb += std::string("&") + static_cast<char>(name - 1) + ";";
    bomb += "\">";
  }
  expect_error(bomb + "]>\n<system version=\"1\">&z;</system>", "a document type (DOCTYPE) is declared", 2);
  std::string deep;
  for (int i = 0; i < 60'000; ++i) deep += "<pci busid=\"0000:00:00.0\">\n";
  expect_error("<system version=\"1\"><cpu numaid=\"0\">\n" + deep, "this is not XML", 0);
  std::string closed;
  for (int i = 0; i < 60'000; ++i) closed += "</pci>";
  expect_error("<system version=\"1\"><cpu numaid=\"0\">\n" + deep + closed + "</cpu></system>", "64 elements deep",
               64);
  std::string million = "<system version=\"1\">\n";
  for (int i = 0; i < 1'000'000; ++i) million += "<a/>\n";
  expect_error(million + "</system>", "more than 65536 elements", 65'537);
  expect_error(replaced(kXgmi, "cpu", std::string("c\0u", 3)), "a byte with the value 0", 2);
  std::string digits;
  digits.resize(10'000'000, '9');
  expect_error(replaced(kXgmi, "38911", digits), "has 10000000 bytes", 4);
  std::string spaces;
  spaces.resize(kMaxXmlBytes + 1, ' ');
  expect_error(spaces, "the text has 16777217 bytes", 1);
  std::string many = "<system version=\"1\">\n<cpu numaid=\"0\"";
  for (int i = 0; i < 1'000; ++i) many += " a" + std::to_string(i) + "=\"\"";
  expect_error(many + "/></system>", "more than 32 attributes", 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * test::patience());
}

TEST(Lint, WholeFilesOfFaultsStayBounded) {
  const auto start = std::chrono::steady_clock::now();
  std::string text = "<system version=\"1\">\n<cpu numaid=\"0\">\n";
  for (int i = 0; i < 20'000; ++i) text += "<pci busid=\"0000:00:00.0\"/>\n";
  for (int i = 0; i < 20'000; ++i) text += "<nic><net name=\"same\"/></nic>\n";
  const XmlReading reading = read_xml(text + "</cpu></system>");
  EXPECT_FALSE(reading.usable());
  EXPECT_EQ(reading.findings.size(), kMaxXmlFindings + 1);
  std::string cpus = "<system version=\"1\">\n";
  for (int i = 0; i < 4'000; ++i) cpus += "<cpu numaid=\"" + std::to_string(i) + "\" affinity=\"ffffffff\"/>\n";
  expect_error(cpus + "</system>", "4000 <cpu> elements; a machine has at most 256", 258);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * test::patience());
}

TEST(Lint, CyclesOfSwitchesEnd) {
  std::string text = "<system version=\"1\"><cpu numaid=\"0\">\n";
  for (int i = 0; i < 8; ++i) {
    text += "<pci busid=\"0000:0" + std::to_string(i) + ":00.0\" class=\"0x060400\"><pcilink target=\"0000:0" +
            std::to_string((i + 1) % 8) + ":00.0\"/><pci busid=\"0000:1" + std::to_string(i) +
            ":00.0\" class=\"0x030200\"/></pci>\n";
  }
  const Result<Graph> graph = parse_xml(text + "</cpu></system>");
  ASSERT_TRUE(graph) << to_string(graph.error());
  EXPECT_EQ(graph->links.size(), 8U + 8U + 8U);
  const auto gpus = nodes_of(*graph, NodeKind::kGpu);
  EXPECT_EQ(paths_from(*graph, gpus[0])[gpus[4]].type, PathType::kPxb);
  const Result<std::string> written = to_xml(*graph);
  ASSERT_TRUE(written) << to_string(written.error());
  EXPECT_EQ(*parse_xml(*written), *graph);
}

}  // namespace
}  // namespace tutti
