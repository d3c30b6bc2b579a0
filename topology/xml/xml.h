// NCCL's XML topology files: read, checked, written. Pure functions over text; any thread. The tool and tests link this
// (tutti::topology_xml), the library that users load does not.
//
// A file is read as far as it can be: every fault becomes a Finding with its line. Time and memory are bounded by the
// limits below, whatever the text is: no entity is expanded, nothing recurses deeper than kMaxXmlDepth.
//
// Extensions, which NCCL passes over, are written only where a graph says what its format cannot: attributes
// tutti_name and tutti_gbytes_per_s (of a part and of the link that leads to it), elements tutti_cpulink, and
// tutti_cpulinks="listed" on the system where the CPUs are not all linked to each other at the default bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti {

inline constexpr std::size_t kMaxXmlBytes = 16U << 20U;
inline constexpr std::size_t kMaxXmlElements = 65'536;
inline constexpr std::size_t kMaxXmlDepth = 64;
inline constexpr std::size_t kMaxXmlAttributes = 32;     // of one element
inline constexpr std::size_t kMaxXmlValueBytes = 1'024;  // of one attribute
inline constexpr std::size_t kMaxXmlFindings = 1'000;    // the last one says that there are more

enum class Severity : std::uint8_t {
  kNote,     // nothing is wrong, but something is assumed
  kWarning,  // taken, or passed over, with the consequence that is told
  kError,    // the file cannot be what was meant
};

struct Finding {
  Severity severity = Severity::kNote;
  std::uint32_t line = 0;  // 1 is the first; 0: of the whole file
  std::uint32_t column = 0;
  std::string what{};
  std::string advice{};  // what to do

  bool operator==(const Finding&) const = default;
};

struct XmlReading {
  Graph graph{};                    // of what could be read; with an error among the findings not to be used
  std::vector<Finding> findings{};  // by line

  bool usable() const;
};

// Parts stand in the order of the file: the CPUs, each followed by what is beneath it, then the NVSwitch. GPUs and NICs
// that the file tells by their PCI class only are numbered in the order of their bus ids.
XmlReading read_xml(std::string_view text);

// Errors: kInvalidArgument with the line, the cause and what to do.
Result<Graph> parse_xml(std::string_view text);

// A file that reads as in_file_order(graph). Errors: kUnsupported for what the format has no place for: a part that no
// CPU leads to, a link of a kind that its ends do not have.
Result<std::string> to_xml(const Graph& graph);

// The same machine, its parts and links in the order in which read_xml() gives them; parts that nothing leads to last.
Graph in_file_order(const Graph& graph);

std::string_view to_string(Severity severity);  // "note", "warning", "error"
std::string to_string(const Finding& finding);  // "line 3, column 5: warning: ...; ..."

}  // namespace tutti
