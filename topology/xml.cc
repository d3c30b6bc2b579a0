#include "topology/xml.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "topology/xml_draft.h"

namespace tutti {
namespace {

bool has_error(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::kError; });
}

constexpr std::string_view kAdvice =
    "give a topology file in NCCL's format, as `tutti topo --write-xml FILE` or NCCL_TOPO_DUMP_FILE makes it on that "
    "machine";

// Files that are taken for topology files, told by how they begin. Empty: it is none of these.
std::string_view kind_of_other_file(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the mark of UTF-8
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  text = text.substr(begin, 4096);
  const auto has_root = [text](std::string_view name) {
    for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
      const std::size_t end = at + name.size();
      if (end < text.size() && (text[end] == ' ' || text[end] == '>' || text[end] == '\n')) return true;
    }
    return false;
  };
  if (text.front() == '{' || text.front() == '[') {
    const bool algorithm = text.find("\"collective\"") != std::string_view::npos;
    return algorithm ? "this is a collective algorithm in JSON, such as an MSCCL++ execution plan" : "this is JSON";
  }
  if (has_root("<system")) return {};
  if (has_root("<!DOCTYPE topology") || has_root("<topology")) return "this is a topology of hwloc (lstopo)";
  return has_root("<algo") ? "this is a collective algorithm of MSCCL" : "";
}

// What stands outermost, where it is not what it should be.
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
  if (const std::string_view other = kind_of_other_file(text); !other.empty()) {
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
