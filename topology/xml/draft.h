// XmlDraft: the intermediate state while a topology file is read. Only read_xml() and the functions that it calls use
// the class. The writer (write.cc) uses only sort_links() from this header.
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

inline constexpr std::size_t kMostCpus = 256;  // limit for the number of <cpu> elements (NUMA nodes) of a machine

class XmlDraft {
 public:
  explicit XmlDraft(std::vector<XmlElement> all);

  Graph graph{};
  std::vector<XmlElement> elements{};
  std::vector<std::vector<std::uint32_t>> children{};  // for each element: the indexes of its child elements
  std::vector<std::uint32_t> element_of{};             // for each node of the graph: the element that describes it
  std::vector<std::uint32_t> parent_of{};              // for each node: the node above it in the PCI tree, or kNoNode
  std::map<std::string, std::uint32_t, std::less<>> by_bus_id{};  // the index of the node with this PCI bus id
  std::vector<Finding> findings{};

  static constexpr std::uint32_t kNoNode = ~0U;

  // Adds a finding at the line of the element. There are at most kMaxXmlFindings findings and one more, which reports
  // that further ones are not listed.
  void report(Severity severity, const XmlElement& element, std::string what, std::string advice);

  // The following functions return the value of an attribute. If the attribute is missing or its value is invalid, they
  // return `otherwise`, or 0, an empty text or nothing if they have no such parameter. An invalid value also adds a
  // finding; for text(), no value is invalid. If `assumed` is empty, the finding is an error, because the graph would
  // show a different machine, for example without a bus id, the number of a GPU or rank, or the count or bandwidth of a
  // link. Otherwise the finding is a warning, and `assumed` is a clause that describes the assumption, for example "the
  // model of the CPU is not known". link_speed() makes an assumption of its own, and also warns about a speed that no
  // generation of PCI Express has.
  std::int64_t integer(const XmlElement& element, std::string_view name, std::int64_t least, std::int64_t most,
                       std::int64_t otherwise, std::string_view assumed = {});
  double real(const XmlElement& element, std::string_view name, double most, double otherwise,
              std::string_view assumed = {});  // valid values are 0 to `most`
  std::uint32_t hexadecimal(const XmlElement& element, std::string_view name, std::uint32_t most,
                            std::string_view assumed = {});
  std::string text(const XmlElement& element, std::string_view name) const;
  std::optional<bool> flag(const XmlElement& element, std::string_view name, std::string_view assumed);
  std::optional<std::string> bus_id(const XmlElement& element, std::string_view name);  // an invalid one is an error
  double link_speed(const XmlElement& element);

  const XmlElement& element_of_node(std::uint32_t node) const { return elements[element_of[node]]; }
  std::vector<std::uint32_t> children_named(std::uint32_t element, std::string_view name) const;
  std::uint32_t cpu_above(std::uint32_t node) const;

 private:
  void report_value(const XmlElement& element, std::string_view name, std::string advice,
                    std::string_view assumed = {});
};

// Checks the names of elements and attributes, that required attributes are present, and that each element is inside an
// element that may contain it. Each fault becomes a finding. Elements that are unknown or misplaced are removed from
// `draft.children`, so that the functions below do not see them; the elements inside them are not checked.
void check_vocabulary(XmlDraft& draft);

// Adds the parts (CPUs, PCI switches, GPUs, NICs) and the links of the PCI tree to draft.graph.
void read_parts(XmlDraft& draft);

// Adds the links outside the PCI tree to draft.graph: NVLink, xGMI, NVLink-C2C, links between CPUs, further links
// between PCI switches. Also adds a node for the NVSwitch if a GPU has a link to it.
void read_links(XmlDraft& draft);

// Finds faults of the file as a whole, for example two GPUs with the same number.
void check_whole(XmlDraft& draft);

// Sorts the links into the order in which read_xml() returns them: first the links of the PCI tree, by the node farther
// from the CPU, then the other PCI links, then all other links by kind; links of the same kind by their nodes.
void sort_links(Graph& graph);

}  // namespace tutti
