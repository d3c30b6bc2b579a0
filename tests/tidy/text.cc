// The rules for lines: their number, their width, and text that is forbidden in them.
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "rules.h"

namespace tutti::tidy {
namespace {

constexpr std::size_t kMaxFileLines = 500;
// May be longer, because NCCL's interface decides how many functions one header declares.
constexpr std::string_view kLongHeader = "include/nccl.h";
constexpr std::size_t kMaxColumns = 120;

// Each text is divided into two literals, so that this file does not break its own rules.
constexpr auto kMachinePaths = std::to_array<std::string_view>({
    "/ho"
    "me/",
    "/wo"
    "rk/",
    "/ro"
    "ot/",
    "/Us"
    "ers/",
    "/tm"
    "p/",
});
constexpr auto kToDoWords =
    std::to_array<std::string_view>({"TO"
                                     "DO",
                                     "FIX"
                                     "ME"});

// Macros that other libraries require us to define.
constexpr auto kForeignMacros = std::to_array<std::string_view>({"HWY_TARGET_INCLUDE", "HWY_DISABLED_TARGETS"});

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The width of a line in characters. In UTF-8 a character has one or more bytes.
std::size_t columns(std::string_view line) {
  std::size_t count = 0;
  for (char c : line) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

bool has_width_limit(std::string_view path) {
  return is_cxx(path) || path.ends_with("CMakeLists.txt") || path.ends_with(".cmake") || path.ends_with(".sh") ||
         path.starts_with("scripts/") || path.starts_with(".ci/");
}

// Whether the line has one of the words without a category in parentheses after it.
bool has_bare_to_do(std::string_view line) {
  for (std::string_view word : kToDoWords) {
    for (std::size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
      const std::string_view after = line.substr(at + word.size());
      const bool whole = (at == 0 || !is_word(line[at - 1])) && (after.empty() || !is_word(after.front()));
      const bool kind = after.size() > 2 && after[0] == '(' && is_word(after[1]);
      if (whole && !kind) return true;
    }
  }
  return false;
}

// Returns a path of kMachinePaths that begins in the line, or an empty text. Paths in the middle of a longer one,
// such as "${prefix}/...", do not count.
std::string_view find_machine_path(std::string_view line) {
  for (std::string_view path : kMachinePaths) {
    for (std::size_t at = line.find(path); at != std::string_view::npos; at = line.find(path, at + 1)) {
      const char before = at == 0 ? ' ' : line[at - 1];
      if (!is_word(before) && before != '}' && before != '.' && before != '/' && before != '*') return path;
    }
  }
  return {};
}

// The name of the macro that a line of code defines, or an empty text.
std::string_view defined_macro(std::string_view code) {
  for (std::string_view part : {"#", "define"}) {
    const std::size_t begin = code.find_first_not_of(" \t");
    if (begin == std::string_view::npos || !code.substr(begin).starts_with(part)) return {};
    code.remove_prefix(begin + part.size());
  }
  code.remove_prefix(std::min(code.find_first_not_of(" \t"), code.size()));
  std::size_t end = 0;
  while (end < code.size() && is_word(code[end])) ++end;
  return code.substr(0, end);
}

// The header with NCCL's API defines NCCL's macros. Its include guard has NCCL's name, because programs test for it.
bool is_allowed_macro(std::string_view path, std::string_view name) {
  if (name.empty() || name.starts_with("TUTTI_")) return true;
  if (path == "include/nccl.h" && (name.starts_with("NCCL_") || name.find("nccl") <= 1)) return true;
  for (std::string_view foreign : kForeignMacros) {
    if (name == foreign) return true;
  }
  return false;
}

void check_line(const std::string& path, std::size_t number, std::string_view line, std::vector<Finding>& findings) {
  if (has_width_limit(path) && columns(line) > kMaxColumns) {
    findings.push_back({"line-width", path, number,
                        std::to_string(columns(line)) + " columns; " + std::to_string(kMaxColumns) + " are allowed"});
  }
  if (has_bare_to_do(line)) findings.push_back({"to-do", path, number, "add a category: (perf), (docs) ..."});
  if (const std::string_view found = find_machine_path(line); !found.empty()) {
    findings.push_back({"machine-path", path, number, std::string(found) + " is a path of one machine"});
  }
}

}  // namespace

void check_text(const SourceTree& tree, std::vector<Finding>& findings) {
  for (const auto& [path, file] : tree) {
    if (is_cxx(path) && file.lines.size() > kMaxFileLines && path != kLongHeader) {
      findings.push_back(
          {"file-length", path, kMaxFileLines + 1,
           std::to_string(file.lines.size()) + " lines; " + std::to_string(kMaxFileLines) + " are allowed"});
    }
    for (std::size_t i = 0; i < file.lines.size(); ++i) check_line(path, i + 1, file.lines[i], findings);
    for (std::size_t i = 0; i < file.code.size(); ++i) {
      const std::string_view macro = defined_macro(file.code[i]);
      if (!is_allowed_macro(path, macro)) {
        findings.push_back({"macro", path, i + 1, std::string(macro) + " does not begin with TUTTI_"});
      }
    }
  }
}

}  // namespace tutti::tidy
