// XmlDraft: the intermediate state while a topology file is read. Only read_xml() and its parts use the class. The
// writer uses sort_links().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/xml/elements.h"
#include "topology/xml/xml.h"

namespace tutti {

inline constexpr std::size_t kMostCpus = 256;  // limit for the NUMA nodes of a machine

class XmlDraft {
 public:
  explicit XmlDraft(std::vector<XmlElement> all);

  Graph graph{};
  std::vector<XmlElement> elements{};
  std::vector<std::vector<std::uint32_t>> children{};  // for each element: the indexes of its child elements
  std::vector<std::uint32_t> element_of{};             // for each node of the graph: the element that describes it
  std::vector<std::uint32_t> parent_of{};              // for each node: the node above it in the PCI tree, or kNoNode
  std::map<std::string, std::uint32_t, std::less<>> by_bus_id{};  // node indexes
  std::vector<Finding> findings{};

  static constexpr std::uint32_t kNoNode = ~0U;

  // Adds a finding at the line of the element. The number of findings is limited; the last one then reports that
  // there are more.
  void report(Severity severity, const XmlElement& element, std::string what, std::string advice);

  // Return the value of an attribute. If it is missing or wrong, they return `otherwise`, or 0 or nothing if there
  // is no such parameter. A wrong value is also a finding. It is an error if the machine would be a different one
  // without the value: bus ids, numbers of GPUs and ranks, counts and bandwidths of links. It is a warning if the
  // rest of the file remains useful. In that case `assumed` describes the assumption, for example "the model is not
  // known".
  std::int64_t integer(const XmlElement& element, std::string_view name, std::int64_t least, std::int64_t most,
                       std::int64_t otherwise, std::string_view assumed = {});
  double real(const XmlElement& element, std::string_view name, double most, double otherwise,
              std::string_view assumed = {});  // 0 .. most
  std::uint32_t hexadecimal(const XmlElement& element, std::string_view name, std::uint32_t most,
                            std::string_view assumed = {});
  std::string text(const XmlElement& element, std::string_view name) const;
  std::optional<bool> flag(const XmlElement& element, std::string_view name, std::string_view assumed);
  std::optional<std::string> bus_id(const XmlElement& element, std::string_view name);  // a wrong one is an error
  double link_speed(const XmlElement& element);

  const XmlElement& element_of_node(std::uint32_t node) const { return elements[element_of[node]]; }
  std::vector<std::uint32_t> children_named(std::uint32_t element, std::string_view name) const;
  std::uint32_t cpu_above(std::uint32_t node) const;

 private:
  void report_value(const XmlElement& element, std::string_view name, std::string advice,
                    std::string_view assumed = {});
};

// Checks the names of elements and attributes, and the positions of elements. Refused elements are removed from
// `draft.children`.
void check_vocabulary(XmlDraft& draft);

// Reads the nodes and the links of the PCI tree.
void read_parts(XmlDraft& draft);

// Reads the other links: NVLink, xGMI, NVLink-C2C, between CPUs, between PCI switches.
void read_links(XmlDraft& draft);

// Finds errors that are not visible in a single part, but in all parts together.
void check_whole(XmlDraft& draft);

// Sorts the links into the order that read_xml() promises: first the links of the PCI tree, by their lower ends,
// then the others by kind and ends.
void sort_links(Graph& graph);

}  // namespace tutti
