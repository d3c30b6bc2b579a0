#include "topology/xml/xml.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/file_format.h"
#include "topology/xml/draft.h"

namespace tutti {
namespace {

bool has_error(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::kError; });
}

constexpr std::string_view kAdvice =
    "give a topology file in NCCL's format, as `tutti topo --write-xml FILE` or NCCL_TOPO_DUMP_FILE makes it on that "
    "machine";

// If the file has a format that users confuse with a topology file, returns a sentence for the message. Otherwise
// returns an empty text.
std::string_view name_of_other_format(FileFormat kind) {
  switch (kind) {
    case FileFormat::kTuttiPlan: return "this is a plan of Tutti";
    case FileFormat::kMscclppPlan:
    case FileFormat::kJsonAlgorithm: return "this is a collective algorithm in JSON, such as an MSCCL++ execution plan";
    case FileFormat::kJson: return "this is JSON";
    case FileFormat::kHwlocTopology: return "this is a topology of hwloc (lstopo)";
    case FileFormat::kMscclAlgorithm: return "this is a collective algorithm of MSCCL";
    case FileFormat::kNcclGraphs:  // refuse_root() reports this format
    case FileFormat::kNcclTopology:
    case FileFormat::kXml:
    case FileFormat::kUnknown: break;
  }
  return {};
}

// Adds the finding that the outermost element `root` is not <system>.
void refuse_root(const XmlElement& root, std::vector<Finding>& findings) {
  constexpr std::size_t kShown = 40;
  const bool graphs = root.name == "graphs";
  findings.push_back({Severity::kError, root.line, root.column,
                      fmt::format("the outermost element is <{}>, not <system>", root.name.substr(0, kShown)),
                      graphs ? "this is a file of rings and trees (NCCL_GRAPH_FILE), not of a machine; give the "
                               "topology file that belongs to it"
                             : std::string(kAdvice)});
}

}  // namespace

bool XmlReading::usable() const { return !has_error(findings); }

XmlReading read_xml(std::string_view text) {
  XmlReading reading;
  if (const std::string_view other = name_of_other_format(file_format(text)); !other.empty()) {
    reading.findings.push_back({Severity::kError, 1, 1, std::string(other), std::string(kAdvice)});
    return reading;
  }
  std::vector<XmlElement> elements = read_elements(text, reading.findings);
  if (has_error(reading.findings)) return reading;
  if (elements.front().name != "system") {
    refuse_root(elements.front(), reading.findings);
    return reading;
  }
  XmlDraft draft(std::move(elements));
  draft.findings = std::move(reading.findings);
  draft.graph.name = draft.text(draft.elements.front(), "tutti_name");
  check_vocabulary(draft);
  read_parts(draft);
  read_links(draft);
  sort_links(draft.graph);
  check_whole(draft);
  reading.graph = std::move(draft.graph);
  reading.findings = std::move(draft.findings);
  std::stable_sort(reading.findings.begin(), reading.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.line < b.line; });
  return reading;
}

Result<Graph> parse_xml(std::string_view text) {
  XmlReading reading = read_xml(text);
  for (const Finding& finding : reading.findings) {
    if (finding.severity != Severity::kError) continue;
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("line {}, column {}: {}; {}", finding.line, finding.column, finding.what, finding.advice)};
  }
  return std::move(reading.graph);
}

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::kNote: return "note";
    case Severity::kWarning: return "warning";
    case Severity::kError: return "error";
  }
  return "unknown";
}

std::string to_string(const Finding& finding) {
  return fmt::format("line {}, column {}: {}: {}; {}", finding.line, finding.column, to_string(finding.severity),
                     finding.what, finding.advice);
}

}  // namespace tutti
