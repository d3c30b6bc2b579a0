// SourceTree: a source tree in memory, which is read once. The rules are functions of it. Values.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::tidy {

struct Include {
  std::string name;    // the name in the source
  std::string target;  // path of the included file from the root; empty if it is not in the tree
  bool quoted = false;
  std::size_t line = 0;  // from 1
};

struct SourceFile {
  std::vector<std::string> lines;
  // only C++: the same lines and columns, with comments and the contents of literals replaced by spaces
  std::vector<std::string> code;
  std::vector<Include> includes;  // C++ only
};

using SourceTree = std::map<std::string, SourceFile>;  // key: path from the root, with '/' between folders

// Reads all text files of the tree, except in build folders, in hidden folders other than .ci, and in the folder
// `shared`.
SourceTree read_tree(const std::filesystem::path& root);

bool is_cxx(std::string_view path);
bool is_header(std::string_view path);
std::string folder_of(const std::string& path);  // "" for a file at the root

}  // namespace tutti::tidy
