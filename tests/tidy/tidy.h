// The house rules that a program can hold. check_tree() reads a source tree and names every place that breaks one:
//
//   layer            an include that the order of the folders forbids
//   include          a quoted include that names no file of the tree
//   cycle            headers that include each other
//   target           a link between CMake's libraries that the order of the folders forbids, or one that is missing
//   file-length      more than 500 lines
//   line-width       more than 120 columns
//   function-length  more than 70 lines
//   unused           a source that no CMakeLists.txt lists and nothing includes
//   macro            a macro whose name does not begin with TUTTI_
//   to-do            one that does not say of what kind it is
//   machine-path     a path that holds on one machine only
//
// That headers are self-contained takes a compiler: see headers.sh beside this file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti::tidy {

struct Finding {
  std::string rule;
  std::string file;      // from the tree's root
  std::size_t line = 0;  // from 1
  std::string message;   // what is wrong and what would be right
};

// Findings in the order of files, then lines. Empty: the tree is as it should be. `root` must be a folder.
std::vector<Finding> check_tree(const std::filesystem::path& root);

}  // namespace tutti::tidy
