// NCCL's XML topology files: reading, checking, writing. All functions are pure and may be called by any thread. They
// work on texts; the caller reads and writes the files. The library does not link this (tutti::topology_xml), but the
// `tutti` command and tests do.
//
// If possible, reading continues after a fault. Each fault becomes a Finding with its line, up to kMaxXmlFindings. For
// any text, time and memory are bounded by the limits below: entities that the text defines are not expanded (only
// those of XML itself, such as &amp;), and nothing recurses deeper than kMaxXmlDepth.
//
// Tutti adds extensions to the format, which NCCL ignores. An extension is written only if the graph has a property
// that NCCL's format cannot express: the attribute tutti_name for the name of the graph or of a part,
// tutti_gbytes_per_s for the bandwidth of a link, and, unless all CPUs are linked to each other with the default
// bandwidth, tutti_cpulinks="listed" on the <system> and one element tutti_cpulink for each link between CPUs.
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
inline constexpr std::size_t kMaxXmlAttributes = 32;     // attributes of one element
inline constexpr std::size_t kMaxXmlValueBytes = 1'024;  // bytes of a value, or of the name of an element or attribute
// Largest number of findings. If some are left out, one further finding reports this, except if all those that are left
// out are about text between elements.
inline constexpr std::size_t kMaxXmlFindings = 1'000;

enum class Severity : std::uint8_t {
  kNote,     // the file is valid, but it lacks a value; a default is used, or the value stays unknown
  kWarning,  // something in the file is doubtful; Finding::advice usually states whether it is used or ignored
  kError,    // the file is invalid, so the graph that was read must not be used
};

struct Finding {
  Severity severity = Severity::kNote;
  std::uint32_t line = 0;    // line of the file with the element or syntax error that this is about, counted from 1
  std::uint32_t column = 0;  // byte in that line at which the element or error begins, counted from 1
  std::string what{};
  std::string advice{};  // the remedy

  bool operator==(const Finding&) const = default;
};

struct XmlReading {
  Graph graph{};                    // the parts that could be read; unusable if any finding is an error
  std::vector<Finding> findings{};  // sorted by line

  bool usable() const;
};

// Reads a topology file from its text. The nodes of the graph are in the order of the file: the CPUs, each followed
// by the parts beneath it in the PCI tree, then the NVSwitch. GPUs and NICs without a number in the file, for example
// those that are described only by their PCI class, are numbered in the order of their bus ids.
XmlReading read_xml(std::string_view text);

// Like read_xml(), but returns only the graph, or the first finding of Severity::kError as an Error
// (kInvalidArgument) with line, cause and remedy. Warnings and notes are dropped.
Result<Graph> parse_xml(std::string_view text);

// Returns the text of a file from which read_xml() reads in_file_order(graph). Errors: kUnsupported if the format
// cannot express the graph, for example because no PCI links connect a part to a CPU, or because it cannot express a
// link of this kind between these two parts.
Result<std::string> to_xml(const Graph& graph);

// Returns the same machine with its parts and links in the order in which read_xml() would return them. Parts that no
// PCI links connect to a CPU come last, for example the NVSwitch.
Graph in_file_order(const Graph& graph);

std::string_view to_string(Severity severity);  // "note", "warning", "error"
std::string to_string(const Finding& finding);  // "line 3, column 5: warning: ...; ..."

}  // namespace tutti
