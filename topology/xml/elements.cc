#include "topology/xml/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <pugixml.hpp>

namespace tutti {
namespace {

// A text with more equals signs is refused before it is parsed. This limits the number of attributes.
constexpr std::size_t kMaxEquals = kMaxXmlElements * 16;

// A position in the text; lines and columns start at 1.
struct TextPosition {
  std::uint32_t line = 0;
  std::uint32_t column = 0;
};

// Converts an offset in the text to a line and a column. Lines end with a newline character.
class Lines {
 public:
  explicit Lines(std::string_view text) {
    for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
      starts_.push_back(at + 1);
    }
  }

  TextPosition position(std::size_t offset) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
    return {static_cast<std::uint32_t>(next - starts_.begin()), static_cast<std::uint32_t>(offset - *(next - 1) + 1)};
  }

 private:
  std::vector<std::size_t> starts_{0};
};

class Reader {
 public:
  Reader(std::string_view text, std::vector<Finding>& findings) : text_(text), lines_(text), findings_(findings) {}

  std::vector<XmlElement> read() {
    if (!is_bounded()) return {};
    pugi::xml_document document;
    // Entities that the text defines are never expanded. Document types are parsed only in order to refuse them.
    constexpr unsigned kOptions =
        pugi::parse_escapes | pugi::parse_eol | pugi::parse_wconv_attribute | pugi::parse_doctype;
    const pugi::xml_parse_result parsed =
        document.load_buffer(text_.data(), text_.size(), kOptions, pugi::encoding_utf8);
    if (!parsed) {
      const auto offset = std::min(static_cast<std::size_t>(std::max<std::ptrdiff_t>(parsed.offset, 0)), text_.size());
      refuse(offset, fmt::format("this is not XML: {}", parsed.description()),
             offset == text_.size() ? "the file may be truncated; get it again" : "correct the text from here on");
      return {};
    }
    if (!has_one_root(document)) return {};
    if (!walk(document.document_element())) return {};
    return std::move(elements_);
  }

 private:
  void refuse(std::size_t offset, std::string what, std::string advice) {
    const TextPosition position = lines_.position(offset);
    findings_.push_back({Severity::kError, position.line, position.column, std::move(what), std::move(advice)});
  }

  bool is_bounded() {
    if (text_.size() > kMaxXmlBytes) {
      refuse(0, fmt::format("the text has {} bytes", text_.size()),
             fmt::format("a topology has a few kilobytes, and {} bytes are read at most", kMaxXmlBytes));
      return false;
    }
    if (const std::size_t nul = text_.find('\0'); nul != std::string_view::npos) {
      refuse(nul, "a byte with the value 0", "the file is binary, damaged, or not in UTF-8; write it as UTF-8");
      return false;
    }
    std::size_t tags = 0;
    std::size_t equals = 0;
    for (std::size_t i = 0; i < text_.size(); ++i) {
      equals += text_[i] == '=' ? 1 : 0;
      const bool tag =
          text_[i] == '<' && i + 1 < text_.size() && (std::isalpha(uchar(i + 1)) != 0 || text_[i + 1] == '_');
      tags += tag ? 1 : 0;
      if (tags > kMaxXmlElements || equals > kMaxEquals) {
        refuse(i,
               fmt::format("more than {} {}", tags > kMaxXmlElements ? kMaxXmlElements : kMaxEquals,
                           tags > kMaxXmlElements ? "elements" : "attributes"),
               "no machine has so many parts; check what wrote the file");
        return false;
      }
    }
    return true;
  }

  unsigned char uchar(std::size_t at) const { return static_cast<unsigned char>(text_[at]); }

  bool has_one_root(const pugi::xml_document& document) {
    std::size_t roots = 0;
    for (const pugi::xml_node& node : document.children()) {
      if (node.type() == pugi::node_doctype) {
        refuse(std::min(text_.find("<!DOCTYPE"), text_.size()), "a document type (DOCTYPE) is declared",
               "remove it: a topology needs none, and entities are not expanded");
        return false;
      }
      if (node.type() != pugi::node_element) continue;
      if (++roots == 1) continue;
      refuse(offset_of(node), fmt::format("a second outermost element, <{}>", shown(node.name())),
             "a file holds one machine, in one <system>");
      return false;
    }
    return true;
  }

  // Visits the elements in the order of the text, without recursion.
  bool walk(pugi::xml_node root) {
    std::vector<std::pair<pugi::xml_node, std::int32_t>> open{{root, -1}};
    while (!open.empty()) {
      const auto [node, parent] = open.back();
      open.pop_back();
      if (!take(node, parent)) return false;
      const auto index = static_cast<std::int32_t>(elements_.size() - 1);
      for (pugi::xml_node child = node.last_child(); child; child = child.previous_sibling()) {
        if (child.type() == pugi::node_element) open.emplace_back(child, index);
        if (child.type() == pugi::node_pcdata) report_text(child, elements_.back());
      }
    }
    return true;
  }

  bool take(pugi::xml_node node, std::int32_t parent) {
    XmlElement element;
    const std::size_t offset = offset_of(node);
    const TextPosition position = lines_.position(offset);
    element.line = position.line;
    element.column = position.column;
    element.parent = parent;
    element.depth = parent < 0 ? 0 : elements_[static_cast<std::size_t>(parent)].depth + 1;
    element.name = node.name();
    const std::string name = shown(element.name);
    if (element.depth >= kMaxXmlDepth) {
      refuse(offset, fmt::format("<{}> lies {} elements deep", name, element.depth),
             fmt::format("PCI trees are a few deep, and {} are read at most", kMaxXmlDepth));
      return false;
    }
    if (element.name.size() > kMaxXmlValueBytes) {
      refuse(offset, fmt::format("an element's name has {} bytes", element.name.size()), "check what wrote the file");
      return false;
    }
    for (const pugi::xml_attribute& attribute : node.attributes()) {
      const std::string_view key = attribute.name();
      const std::string_view value = attribute.value();
      if (key.size() > kMaxXmlValueBytes || value.size() > kMaxXmlValueBytes) {
        refuse(offset,
               fmt::format("attribute {} of <{}> has {} bytes", shown(key), name, std::max(key.size(), value.size())),
               fmt::format("at most {} bytes are read", kMaxXmlValueBytes));
        return false;
      }
      const auto control = [](char letter) { return std::iscntrl(static_cast<unsigned char>(letter)) != 0; };
      // If a message about this value contained a control character, a terminal could interpret it as a command.
      if (std::any_of(value.begin(), value.end(), control)) {
        refuse(offset, fmt::format("attribute {} of <{}> holds a control character", shown(key), name),
               "names and numbers have none");
        return false;
      }
      if (element.find(key) != nullptr) {
        refuse(offset, fmt::format("<{}> has the attribute {} twice", name, shown(key)), "leave one of them");
        return false;
      }
      if (element.attributes.size() == kMaxXmlAttributes) {
        refuse(offset, fmt::format("<{}> has more than {} attributes", name, kMaxXmlAttributes),
               "check what wrote the file");
        return false;
      }
      element.attributes.push_back({std::string(key), std::string(value)});
    }
    elements_.push_back(std::move(element));
    return true;
  }

  void report_text(pugi::xml_node node, const XmlElement& parent) {
    const std::string_view value = node.value();
    const bool blank =
        std::all_of(value.begin(), value.end(), [](unsigned char letter) { return std::isspace(letter) != 0; });
    if (blank || findings_.size() >= kMaxXmlFindings) return;
    findings_.push_back({Severity::kWarning, parent.line, parent.column,
                         fmt::format("text between the elements of <{}>: {}", shown(parent.name), shown(value)),
                         "it is ignored; parts are described by attributes"});
  }

  static std::size_t offset_of(const pugi::xml_node& node) {
    return static_cast<std::size_t>(std::max<std::ptrdiff_t>(node.offset_debug(), 1)) - 1;  // the offset of "<"
  }

  // Makes a text suitable for a message: short, and without control characters.
  static std::string shown(std::string_view text) {
    constexpr std::size_t kShown = 40;
    std::string fit(text.substr(0, kShown));
    for (char& letter : fit) {
      if (std::iscntrl(static_cast<unsigned char>(letter)) != 0) letter = ' ';
    }
    return text.size() > kShown ? fit + "..." : fit;
  }

  std::string_view text_;
  Lines lines_;
  std::vector<Finding>& findings_;
  std::vector<XmlElement> elements_;
};

}  // namespace

const std::string* XmlElement::find(std::string_view attribute) const {
  for (const XmlAttribute& one : attributes) {
    if (one.name == attribute) return &one.value;
  }
  return nullptr;
}

std::vector<XmlElement> read_elements(std::string_view text, std::vector<Finding>& findings) {
  return Reader(text, findings).read();
}

}  // namespace tutti
