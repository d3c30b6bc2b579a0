// NCCL's XML topology files: reading, checking, writing. All functions are pure functions of text; may be called by
// any thread. The tool and tests link this (tutti::topology_xml), but the library that users load does not.
//
// As much of a file as possible is read, and every fault becomes a Finding with its line. For any text, time and
// memory are bounded by the limits below: no entity is expanded, and nothing recurses deeper than kMaxXmlDepth.
//
// There are extensions, which NCCL ignores. They are written only if the graph has a property that NCCL's format
// cannot express: the attributes tutti_name and tutti_gbytes_per_s (for a part and for the link that leads to it),
// the element tutti_cpulink, and tutti_cpulinks="listed" on the <system> if not all CPUs are linked to each other
// with the default bandwidth.
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
inline constexpr std::size_t kMaxXmlFindings = 1'000;    // the last one reports that there are more

enum class Severity : std::uint8_t {
  kNote,     // nothing is wrong, but something is assumed
  kWarning,  // used or ignored, with the consequence that the finding describes
  kError,    // the file cannot be what its author intended
};

struct Finding {
  Severity severity = Severity::kNote;
  std::uint32_t line = 0;  // starts at 1; 0: the whole file
  std::uint32_t column = 0;
  std::string what{};
  std::string advice{};  // the remedy

  bool operator==(const Finding&) const = default;
};

struct XmlReading {
  Graph graph{};                    // the parts that could be read; unusable if any finding is an error
  std::vector<Finding> findings{};  // sorted by line

  bool usable() const;
};

// The nodes are in the order of the file: the CPUs, each followed by the parts beneath it, then the NVSwitch. If the
// file describes GPUs or NICs only by their PCI class, they are numbered in the order of their bus ids.
XmlReading read_xml(std::string_view text);

// Like read_xml(), but stops at the first error. Errors: kInvalidArgument with line, cause and remedy.
Result<Graph> parse_xml(std::string_view text);

// Returns a file from which read_xml() reads in_file_order(graph). Errors: kUnsupported if the format cannot express
// the graph, for example because no CPU leads to a part, or because a link has a kind that is impossible between its
// ends.
Result<std::string> to_xml(const Graph& graph);

// The same machine with its parts and links in the order in which read_xml() returns them. Parts that no CPU leads
// to come last.
Graph in_file_order(const Graph& graph);

std::string_view to_string(Severity severity);  // "note", "warning", "error"
std::string to_string(const Finding& finding);  // "line 3, column 5: warning: ...; ..."

}  // namespace tutti
