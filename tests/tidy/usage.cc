// Finds unused sources. A header is used if another file includes it. A .cc file is used if a file includes it, or if
// a CMakeLists.txt of the tree lists it (by its path from there).
#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "rules.h"

namespace tutti::tidy {
namespace {

// The words of a CMake file without comments.
std::vector<std::string> cmake_words(const SourceFile& file) {
  std::vector<std::string> words;
  for (const std::string& line : file.lines) {
    const std::string code = line.substr(0, line.find('#'));
    std::size_t at = 0;
    while ((at = code.find_first_not_of(" \t();\"<>", at)) != std::string::npos) {
      const std::size_t end = std::min(code.find_first_of(" \t();\"<>", at), code.size());
      words.push_back(code.substr(at, end - at));
      at = end;
    }
  }
  return words;
}

// The path from the root of the file that `word` means in a CMakeLists.txt in `folder`. Variables for folders are
// replaced.
std::string named_path(const std::string& folder, std::string_view word) {
  std::filesystem::path base = folder;
  for (std::string_view variable : {"${PROJECT_SOURCE_DIR}/", "${CMAKE_SOURCE_DIR}/", "${CMAKE_CURRENT_SOURCE_DIR}/"}) {
    if (!word.starts_with(variable)) continue;
    word.remove_prefix(variable.size());
    if (variable != "${CMAKE_CURRENT_SOURCE_DIR}/") base.clear();
  }
  return (base / word).lexically_normal().generic_string();
}

}  // namespace

void check_usage(const SourceTree& tree, std::vector<Finding>& findings) {
  std::set<std::string> used;
  for (const auto& [path, file] : tree) {
    for (const Include& include : file.includes) {
      if (include.target != path) used.insert(include.target);
    }
    if (!path.ends_with("CMakeLists.txt")) continue;
    for (const std::string& word : cmake_words(file)) {
      if (word.ends_with(".cc")) used.insert(named_path(folder_of(path), word));
    }
  }
  for (const auto& [path, file] : tree) {
    if (is_cxx(path) && !used.contains(path)) {
      findings.push_back({"unused", path, 1, is_header(path) ? "no file includes it" : "no CMakeLists.txt lists it"});
    }
  }
}

}  // namespace tutti::tidy
