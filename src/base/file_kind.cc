#include "base/file_kind.h"

#include <cstddef>
#include <string_view>

namespace tutti {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::size_t kLooksAt = 4096;

// Whether an element or a declaration begins with `name`, and the name ends there: "<system" is not "<systems".
bool has_tag(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const std::string_view rest = text.substr(at + name.size());
    if (rest.empty() || rest.front() == '>' || rest.front() == '/' || kSpace.find(rest.front()) != kSpace.npos) {
      return true;
    }
  }
  return false;
}

FileKind kind_of_json(std::string_view text) {
  const auto has = [text](std::string_view key) { return text.find(key) != std::string_view::npos; };
  if (has("\"tutti_plan\"")) return FileKind::kTuttiPlan;
  if (has("\"gpus\"")) return FileKind::kMscclppPlan;
  return has("\"collective\"") ? FileKind::kJsonAlgorithm : FileKind::kJson;
}

FileKind kind_of_xml(std::string_view text) {
  if (has_tag(text, "<system")) return FileKind::kNcclTopology;
  if (has_tag(text, "<graphs")) return FileKind::kNcclGraphs;
  if (has_tag(text, "<algo")) return FileKind::kMscclAlgorithm;
  if (has_tag(text, "<!DOCTYPE topology") || has_tag(text, "<topology")) return FileKind::kHwlocTopology;
  return FileKind::kXml;
}

}  // namespace

FileKind file_kind(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the mark of UTF-8
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return FileKind::kUnknown;
  text = text.substr(begin, kLooksAt);
  if (text.front() == '<') return kind_of_xml(text);
  return text.front() == '{' || text.front() == '[' ? kind_of_json(text) : FileKind::kUnknown;
}

}  // namespace tutti
