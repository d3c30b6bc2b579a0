#include "base/file_format.h"

#include <cstddef>
#include <string_view>

namespace tutti {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::size_t kLooksAt = 4096;

// Whether the text contains an element or a declaration that begins with `name` (with its "<") as a whole word. For
// example, "<system" is not found in "<systems>".
bool has_tag(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const std::string_view rest = text.substr(at + name.size());
    if (rest.empty() || rest.front() == '>' || rest.front() == '/' || kSpace.find(rest.front()) != kSpace.npos) {
      return true;
    }
  }
  return false;
}

FileFormat format_of_json(std::string_view text) {
  const auto has = [text](std::string_view key) { return text.find(key) != std::string_view::npos; };
  if (has("\"tutti_plan\"")) return FileFormat::kTuttiPlan;
  if (has("\"gpus\"")) return FileFormat::kMscclppPlan;
  return has("\"collective\"") ? FileFormat::kJsonAlgorithm : FileFormat::kJson;
}

FileFormat format_of_xml(std::string_view text) {
  if (has_tag(text, "<system")) return FileFormat::kNcclTopology;
  if (has_tag(text, "<graphs")) return FileFormat::kNcclGraphs;
  if (has_tag(text, "<algo")) return FileFormat::kMscclAlgorithm;
  if (has_tag(text, "<!DOCTYPE topology") || has_tag(text, "<topology")) return FileFormat::kHwlocTopology;
  return FileFormat::kXml;
}

}  // namespace

FileFormat file_format(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the UTF-8 byte order mark
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return FileFormat::kUnknown;
  text = text.substr(begin, kLooksAt);
  if (text.front() == '<') return format_of_xml(text);
  return text.front() == '{' || text.front() == '[' ? format_of_json(text) : FileFormat::kUnknown;
}

}  // namespace tutti
