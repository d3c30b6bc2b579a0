#include "topology/xml/draft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/config.h"
#include "topology/speeds.h"
#include "topology/xml/values.h"

namespace tutti {
namespace {

constexpr double kMostGigatransfers = 256;  // generation 8 of PCI Express
constexpr auto kGenerations = std::to_array<double>({2.5, 5, 8, 16, 32, 64, 128, 256});

// The rule for one type of element in the format: the elements that may contain it, the attributes that it may have,
// and the attributes that it must have. Each list is a text with a space before and after each name.
struct ElementRule {
  std::string_view name;
  std::string_view parents;  // empty: the element is the root
  std::string_view attributes;
  std::string_view required;
};

constexpr auto kElementRules = std::to_array<ElementRule>({
    {"system", "", " version tutti_name tutti_cpulinks ", ""},
    {"cpu", " system ", " numaid affinity arch vendor familyid modelid host_hash tutti_name ", " numaid "},
    {"pci", " cpu pci ",
     " busid class vendor device subsystem_vendor subsystem_device link_speed link_width tutti_name "
     "tutti_gbytes_per_s ",
     " busid "},
    {"gpu", " pci ", " dev sm rank gdr gcn arch mlopart ", ""},
    {"nvlink", " gpu ", " target count tclass tutti_gbytes_per_s ", " target count "},
    {"xgmi", " gpu ", " target count tclass tutti_gbytes_per_s ", " target count "},
    {"c2c", " gpu ", " bw count tutti_gbytes_per_s ", " bw count "},
    {"nic", " cpu pci ", "", ""},
    {"net", " nic ",
     " name dev speed port latency guid maxconn gdr coll rail plane keep tutti_name tutti_gbytes_per_s ", " name "},
    {"pcilink", " pci ", " target ", " target "},
    {"tutti_cpulink", " cpu ", " target count gbytes_per_s ", " target gbytes_per_s "},
});

const ElementRule* find_rule(std::string_view name) {
  const auto* const found = std::find_if(kElementRules.begin(), kElementRules.end(),
                                         [&](const ElementRule& rule) { return rule.name == name; });
  return found == kElementRules.end() ? nullptr : found;
}

bool has(std::string_view list, std::string_view name) { return list.find(fmt::format(" {} ", name)) != list.npos; }

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> names;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    if (end > 0) names.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return names;
}

std::string suggestion(std::string_view name, std::span<const std::string_view> known) {
  const std::string_view nearest = nearest_name(name, known);
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

void check_attributes(XmlDraft& draft, const XmlElement& element, const ElementRule& rule) {
  for (const XmlAttribute& attribute : element.attributes) {
    if (has(rule.attributes, attribute.name)) continue;
    draft.report(Severity::kWarning, element, fmt::format("<{}> has no attribute {}", rule.name, attribute.name),
                 "it is ignored" + suggestion(attribute.name, split(rule.attributes)));
  }
  for (const std::string_view name : split(rule.required)) {
    if (element.find(name) != nullptr) continue;
    draft.report(Severity::kError, element, fmt::format("<{}> without {}", rule.name, name),
                 fmt::format("add the attribute {}", name));
  }
}

bool is_in_place(XmlDraft& draft, const XmlElement& inner, const XmlElement& outer,
                 std::span<const std::string_view> names) {
  const ElementRule* rule = find_rule(inner.name);
  if (rule == nullptr) {
    constexpr std::size_t kShown = 40;
    draft.report(Severity::kWarning, inner, fmt::format("unknown element <{}>", inner.name.substr(0, kShown)),
                 "it is ignored with all that it holds" + suggestion(inner.name, names));
    return false;
  }
  if (has(rule->parents, outer.name)) return true;
  draft.report(Severity::kError, inner, fmt::format("<{}> inside <{}>", inner.name, outer.name),
               rule->parents.empty() ? "it is the outermost element"
                                     : fmt::format("it belongs into <{}>", fmt::join(split(rule->parents), "> or <")));
  return false;
}

}  // namespace

XmlDraft::XmlDraft(std::vector<XmlElement> all) : elements(std::move(all)), children(elements.size()) {
  for (std::uint32_t i = 0; i < elements.size(); ++i) {
    if (elements[i].parent >= 0) children[static_cast<std::size_t>(elements[i].parent)].push_back(i);
  }
}

void XmlDraft::report(Severity severity, const XmlElement& element, std::string what, std::string advice) {
  if (findings.size() >= kMaxXmlFindings) {
    // The severity of the last finding is the highest severity of all findings that are not listed.
    if (findings.size() == kMaxXmlFindings) {
      findings.push_back(
          {severity, element.line, element.column, "there are more findings than are listed", "correct these first"});
    }
    findings.back().severity = std::max(findings.back().severity, severity);
    return;
  }
  findings.push_back({severity, element.line, element.column, std::move(what), std::move(advice)});
}

void XmlDraft::report_value(const XmlElement& element, std::string_view name, std::string advice,
                            std::string_view assumed) {
  constexpr std::size_t kShown = 40;
  const std::string* value = element.find(name);
  report(assumed.empty() ? Severity::kError : Severity::kWarning, element,
         fmt::format("{} of <{}> is \"{}\"", name, element.name, value == nullptr ? "" : value->substr(0, kShown)),
         assumed.empty() ? std::move(advice) : fmt::format("it is assumed that {}; {}", assumed, advice));
}

std::int64_t XmlDraft::integer(const XmlElement& element, std::string_view name, std::int64_t least, std::int64_t most,
                               std::int64_t otherwise, std::string_view assumed) {
  const std::string* value = element.find(name);
  if (value == nullptr) return otherwise;
  const auto number = parse_integer(*value);
  if (number && *number >= least && *number <= most) return *number;
  report_value(element, name, fmt::format("write a whole number from {} to {}", least, most), assumed);
  return otherwise;
}

double XmlDraft::real(const XmlElement& element, std::string_view name, double most, double otherwise,
                      std::string_view assumed) {
  const std::string* value = element.find(name);
  if (value == nullptr) return otherwise;
  const auto number = parse_real(*value);
  if (number && *number >= 0 && *number <= most) return *number;
  report_value(element, name, fmt::format("write a number from 0 to {}", most), assumed);
  return otherwise;
}

std::uint32_t XmlDraft::hexadecimal(const XmlElement& element, std::string_view name, std::uint32_t most,
                                    std::string_view assumed) {
  const std::string* value = element.find(name);
  if (value == nullptr) return 0;
  const auto number = parse_hexadecimal(*value);
  if (number && *number <= most) return *number;
  report_value(element, name, fmt::format("write a hexadecimal number up to 0x{:x}", most), assumed);
  return 0;
}

std::string XmlDraft::text(const XmlElement& element, std::string_view name) const {
  const std::string* value = element.find(name);
  return value == nullptr ? std::string() : *value;
}

std::optional<bool> XmlDraft::flag(const XmlElement& element, std::string_view name, std::string_view assumed) {
  const std::string* value = element.find(name);
  if (value == nullptr) return std::nullopt;
  if (*value == "0" || *value == "1") return *value == "1";
  report_value(element, name, "write 0 or 1", assumed);
  return std::nullopt;
}

std::optional<std::string> XmlDraft::bus_id(const XmlElement& element, std::string_view name) {
  const std::string* value = element.find(name);
  if (value == nullptr) return std::nullopt;  // check_vocabulary() has reported that the attribute is missing
  auto id = parse_bus_id(*value);
  if (!id) report_value(element, name, "write domain, bus, device and function in hexadecimal: 0000:3b:00.0");
  return id;
}

double XmlDraft::link_speed(const XmlElement& element) {
  const std::string* value = element.find("link_speed");
  if (value == nullptr || value->empty()) return 0;
  const auto speed = parse_link_speed(*value);
  // The text is not a valid speed: not a number, for example "Unknown", which the kernel reports for some virtual
  // devices, or a number out of range.
  if (!speed || *speed < 0 || *speed > kMostGigatransfers) {
    report_value(element, "link_speed", "write it as \"16 GT/s\" or \"16.0 GT/s PCIe\", or leave it empty",
                 fmt::format("it is {} GT/s", kPciDefaultGigatransfers));
    return 0;
  }
  if (*speed > 0 && std::find(kGenerations.begin(), kGenerations.end(), *speed) == kGenerations.end()) {
    report(Severity::kWarning, element,
           fmt::format("link_speed of <pci> is {} GT/s, the speed of no generation", *speed),
           "it is used as it is; generations have 2.5, 5, 8, 16, 32, 64, 128, 256");
  }
  return *speed;
}

std::vector<std::uint32_t> XmlDraft::children_named(std::uint32_t element, std::string_view name) const {
  std::vector<std::uint32_t> found;
  for (const std::uint32_t child : children[element]) {
    if (elements[child].name == name) found.push_back(child);
  }
  return found;
}

std::uint32_t XmlDraft::cpu_above(std::uint32_t node) const {
  while (parent_of[node] != kNoNode) node = parent_of[node];
  return node;
}

void check_vocabulary(XmlDraft& draft) {
  std::vector<std::string_view> names;
  for (const ElementRule& rule : kElementRules) names.push_back(rule.name);
  std::vector<bool> kept(draft.elements.size(), false);
  kept.front() = true;  // read_xml() has checked that it is a <system>
  for (std::uint32_t i = 0; i < draft.elements.size(); ++i) {
    if (!kept[i]) continue;
    const XmlElement& element = draft.elements[i];
    check_attributes(draft, element, *find_rule(element.name));
    std::erase_if(draft.children[i], [&](std::uint32_t child) {
      const bool keep = is_in_place(draft, draft.elements[child], element, names);
      kept[child] = keep;
      return !keep;
    });
  }
}

}  // namespace tutti
