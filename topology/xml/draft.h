// What reading a topology file has come to so far: shared by the parts of read_xml(), of no use to others.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/xml/elements.h"
#include "topology/xml/xml.h"

namespace tutti {

class XmlDraft {
 public:
  explicit XmlDraft(std::vector<XmlElement> all);

  Graph graph{};
  std::vector<XmlElement> elements{};
  std::vector<std::vector<std::uint32_t>> children{};  // of each element, by index
  std::vector<std::uint32_t> element_of{};             // of each node of the graph: the element that told it
  std::vector<std::uint32_t> parent_of{};              // of each node: the node above it in the PCI tree; kNoNode: none
  std::map<std::string, std::uint32_t, std::less<>> by_bus_id{};  // nodes
  std::vector<Finding> findings{};

  static constexpr std::uint32_t kNoNode = ~0U;

  // At the element's line; a bounded number, of which the last says that there are more.
  void report(Severity severity, const XmlElement& element, std::string what, std::string advice);

  // Values of an attribute. A missing or a wrong one gives `otherwise` (0, or nothing, without that parameter). A wrong
  // one is a finding. It is an error if the machine would be another one without the value: bus ids, numbers of GPUs
  // and ranks, counts and bandwidths of links. It is a warning if the rest of the file is as good without it. Then
  // `assumed` says what is assumed, for example "the model is not known".
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

// Names of elements and attributes, and where elements may stand. Elements that were refused are left out of
// `draft.children`.
void check_vocabulary(XmlDraft& draft);

// Nodes and the links of the PCI tree.
void read_parts(XmlDraft& draft);

// NVLink, xGMI, chip to chip, between CPUs, between PCI switches.
void read_links(XmlDraft& draft);

// What each part by itself is not wrong in, but all together are.
void check_whole(XmlDraft& draft);

// Links in the order that read_xml() promises: the PCI tree's by the lower end, then the others by kind and ends.
void sort_links(Graph& graph);

}  // namespace tutti
