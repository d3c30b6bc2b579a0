// Converts the text of an XML file to a flat list of elements. The numbers and depths of elements are within the
// limits of xml.h, so a recursion over the list is safe. The function changes nothing but `findings`; may be called by
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "topology/xml/xml.h"

namespace tutti {

struct XmlAttribute {
  std::string name{};
  std::string value{};
};

struct XmlElement {
  std::string name{};
  std::vector<XmlAttribute> attributes{};
  std::int32_t parent = -1;  // index of the enclosing element in the list; -1: this element is the root
  std::uint32_t depth = 0;
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  const std::string* find(std::string_view attribute) const;
};

// Returns the elements in the order of the text, the root first. Adds faults to `findings`. Returns an empty list if
// one of them is a Severity::kError, for example because the text is not XML, has several roots, a DOCTYPE or a control
// character in a value, or exceeds a limit.
std::vector<XmlElement> read_elements(std::string_view text, std::vector<Finding>& findings);

}  // namespace tutti
