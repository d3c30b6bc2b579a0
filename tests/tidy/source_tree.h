// A source tree in memory, read once; the rules are functions over it. Values.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::tidy {

struct Include {
  std::string name;    // as written
  std::string target;  // the file of the tree that it names, or empty
  bool quoted = false;
  std::size_t line = 0;  // from 1
};

struct SourceFile {
  std::vector<std::string> lines;
  std::vector<std::string> code;  // C++ only: the same lines and columns, comments and the inside of literals blanked
  std::vector<Include> includes;  // C++ only
};

using SourceTree = std::map<std::string, SourceFile>;  // by path from the root, '/' between folders

// All text files of the tree but for build folders, hidden ones other than .ci, and what stands beside the project.
SourceTree read_tree(const std::filesystem::path& root);

bool is_cxx(std::string_view path);
bool is_header(std::string_view path);
std::string folder_of(const std::string& path);  // "" for a file at the root

}  // namespace tutti::tidy
