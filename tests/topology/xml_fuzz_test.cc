// Reads thousands of damaged topology files, which are generated from one seed. Reading must end, and must give
// either a valid graph or a finding with a line number. With the address sanitizer this test also finds reads out of
// bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "topology/xml/xml.h"
#include "xml_files.h"

namespace tutti {
namespace {

constexpr int kMutants = 10'000;
constexpr int kMostChanges = 3;

constexpr auto kWords = std::to_array<std::string_view>({"<",
                                                         ">",
                                                         "/>",
                                                         "\"",
                                                         "=",
                                                         "&lt;",
                                                         "&#0;",
                                                         "<!--",
                                                         "-->",
                                                         "<![CDATA[",
                                                         "]]>",
                                                         "<pci>",
                                                         "</pci>",
                                                         "<gpu/>",
                                                         "<nic>",
                                                         "<net name=\"x\"/>",
                                                         "busid",
                                                         "-1",
                                                         "0",
                                                         "1e309",
                                                         "99999999999999999999",
                                                         "0x",
                                                         "nan",
                                                         "0000:00:00.0",
                                                         "link_speed=\"-1 GT/s\"",
                                                         "count=\"1024\"",
                                                         "target=\"0000:11:00.0\"",
                                                         "tclass=\"0x068000\"",
                                                         "tclass=\"0x068001\"",
                                                         "\xff\xfe",
                                                         "\t",
                                                         "<pcilink target=\"0000:10:00.0\"/>",
                                                         "numaid=\"0\"",
                                                         "tutti_gbytes_per_s=\"5\"",
                                                         "tutti_name=\"gpu0\"",
                                                         "tutti_cpulinks=\"listed\"",
                                                         "<tutti_cpulink target=\"1\" gbytes_per_s=\"3\"/>",
                                                         "dev=\"-1\"",
                                                         "class=\"0x030200\""});

class Mutator {
 public:
  Mutator(std::uint64_t seed, const std::vector<std::string>& corpus) : random_(seed), corpus_(corpus) {}

  std::string mutant() {
    std::string text = corpus_[below(corpus_.size())];
    const std::size_t changes = 1 + below(kMostChanges);
    for (std::size_t i = 0; i < changes && !text.empty(); ++i) change(text);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random_); }

  void change(std::string& text) {
    const std::size_t at = below(text.size());
    const std::size_t length = std::min(1 + below(200), text.size() - at);
    switch (below(8)) {
      case 0: text[at] = static_cast<char>(below(256)); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(below(text.size()), length)); break;
      case 3: text.insert(at, kWords[below(kWords.size())]); break;
      case 4: replace_value(text, at); break;
      case 5: swap_lines(text); break;
      case 6: text.resize(at); break;
      default: {
        const std::string& other = corpus_[below(corpus_.size())];
        text.replace(at, length, other.substr(below(other.size()), length));
      }
    }
  }

  // Replaces the value of the next attribute by one of kWords. The text is still XML, so it reaches the checks of
  // values.
  void replace_value(std::string& text, std::size_t at) {
    const std::size_t begin = text.find("=\"", at);
    if (begin == std::string::npos) return;
    const std::size_t end = text.find('"', begin + 2);
    if (end == std::string::npos) return;
    const std::string_view word = kWords[below(kWords.size())];
    if (word.find('"') == std::string_view::npos) text.replace(begin + 2, end - begin - 2, word);
  }

  void swap_lines(std::string& text) {
    const std::size_t one = text.find('\n', below(text.size()));
    const std::size_t other = text.find('\n', below(text.size()));
    if (one == std::string::npos || other == std::string::npos) return;
    const std::size_t end = std::min(text.find('\n', other + 1), text.size());
    text.insert(one, text.substr(other, end - other));
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& corpus_;
};

void expect_sound(const Graph& graph) {
  std::set<std::string> names;
  for (const GraphNode& node : graph.nodes) EXPECT_TRUE(names.insert(node.name).second) << node.name;
  for (const GraphLink& link : graph.links) {
    ASSERT_LT(link.from, graph.nodes.size());
    ASSERT_LT(link.to, graph.nodes.size());
    EXPECT_NE(link.from, link.to);
    EXPECT_GT(link.gbytes_per_s, 0);
    EXPECT_GT(link.count, 0U);
  }
  for (const std::uint32_t gpu : nodes_of(graph, NodeKind::kGpu)) {
    EXPECT_EQ(paths_from(graph, gpu)[gpu].type, PathType::kLoc);
  }
}

TEST(XmlFuzz, DamagedFilesGiveASoundGraphOrAFindingWithItsLine) {
  std::vector<std::string> corpus{testing::kTwoSockets, testing::kXgmi, testing::kSkeleton};
  for (const auto& file : testing::published_topologies(TUTTI_SOURCE_DIR)) corpus.push_back(testing::contents(file));
  const char* told = std::getenv("TUTTI_FUZZ_SEED");
  const std::uint64_t seed = told == nullptr ? 1 : std::strtoull(told, nullptr, 10);
  Mutator mutator(seed, corpus);
  int usable = 0;
  int written = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = mutator.mutant();
    SCOPED_TRACE("TUTTI_FUZZ_SEED=" + std::to_string(seed) + ", mutant " + std::to_string(i) + ":\n" + text);
    const XmlReading reading = read_xml(text);
    for (const Finding& finding : reading.findings) {
      EXPECT_GT(finding.line, 0U);
      EXPECT_FALSE(finding.what.empty());
    }
    EXPECT_EQ(reading.usable(), parse_xml(text).ok());
    if (!reading.usable()) continue;
    ++usable;
    expect_sound(reading.graph);
    EXPECT_EQ(in_file_order(reading.graph), reading.graph);
    const Result<std::string> again = to_xml(reading.graph);
    written += again ? 1 : 0;
    EXPECT_TRUE(again) << to_string(again.error());
    if (HasFailure()) return;
  }
  // If nearly all mutants were valid, or nearly all invalid, the fuzzer would test too little.
  EXPECT_GT(usable, kMutants / 20);
  EXPECT_LT(usable, kMutants * 19 / 20);
  EXPECT_EQ(written, usable);
}

}  // namespace
}  // namespace tutti
