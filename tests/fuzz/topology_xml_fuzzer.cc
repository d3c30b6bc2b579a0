// Fuzzes the reader of topology files. For any bytes, reading must end, errors must state a location, and a usable
// result must be a valid graph that stays the same when it is written and read again. Built only with TUTTI_FUZZERS
// (see README.md). tests/topology/xml_fuzz_test.cc is a smaller version in every test run.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "topology/xml/xml.h"

namespace {

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// With more parts, the paths are not checked, because their time grows with the square of this number.
constexpr std::size_t kMostParts = 64;

void check_sound(const tutti::Graph& graph) {
  for (const tutti::GraphLink& link : graph.links) {
    demand(link.from < graph.nodes.size() && link.to < graph.nodes.size() && link.from != link.to,
           "links have two ends");
    demand(link.gbytes_per_s > 0 && link.count > 0, "links have a bandwidth and a count");
  }
  if (graph.nodes.size() > kMostParts) return;
  for (const std::uint32_t gpu : nodes_of(graph, tutti::NodeKind::kGpu)) {
    demand(paths_from(graph, gpu)[gpu].type == tutti::PathType::kLoc, "a GPU reaches itself");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const tutti::XmlReading reading = tutti::read_xml(text);
  demand(reading.findings.size() <= tutti::kMaxXmlFindings, "findings are bounded");
  for (const tutti::Finding& finding : reading.findings) demand(!finding.what.empty(), "findings have a text");
  demand(reading.usable() == tutti::parse_xml(text).ok(), "both readers accept the same files");
  if (!reading.usable()) return 0;
  check_sound(reading.graph);
  demand(in_file_order(reading.graph) == reading.graph, "parts are in the order of the file");
  const tutti::Result<std::string> written = to_xml(reading.graph);
  demand(written.ok(), "a graph that was read can be written");
  const tutti::XmlReading again = tutti::read_xml(*written);
  demand(again.usable(), "written text can be read");
  demand(again.graph.nodes == reading.graph.nodes && again.graph.links == reading.graph.links,
         "what was written is the same machine");
  return 0;
}
