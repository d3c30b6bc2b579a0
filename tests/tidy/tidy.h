// The rules of the project that a program can check. check_tree() reads a source tree and reports every place that
// breaks one:
//
//   layer            an include that the order of the folders forbids
//   include          a quoted include of a file that is not in the tree
//   cycle            headers that include each other
//   target           a link between CMake libraries that the order of the folders forbids, or a missing one
//   file-length      more than 500 lines
//   line-width       more than 120 columns
//   function-length  more than 70 lines
//   unused           a source that no CMakeLists.txt lists and no file includes
//   macro            a macro with a name that does not begin with TUTTI_
//   to-do            a to-do comment without a category, such as (perf)
//   machine-path     an absolute path that exists only on one machine
//
// headers.sh in this folder checks that headers are self-contained, because that needs a compiler.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti::tidy {

struct Finding {
  std::string rule;
  std::string file;      // path from the root of the tree
  std::size_t line = 0;  // from 1
  std::string message;   // the problem and the correct form
};

// Checks the tree at `root`, which must be a folder. Returns the findings ordered by file and line. Empty: no rule is
// broken.
std::vector<Finding> check_tree(const std::filesystem::path& root);

}  // namespace tutti::tidy
