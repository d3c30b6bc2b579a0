// The text of an XML file as a flat list of elements, within stated limits: what is safe to walk. Pure; any thread.
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
  std::int32_t parent = -1;  // index into the list; -1: the root
  std::uint32_t depth = 0;
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  const std::string* find(std::string_view attribute) const;
};

// In the order of the text, the root first. Nothing where a finding of kError was added.
std::vector<XmlElement> read_elements(std::string_view text, std::vector<Finding>& findings);

}  // namespace tutti
