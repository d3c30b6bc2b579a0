#include "tidy.h"

#include <algorithm>
#include <tuple>

#include "rules.h"

namespace tutti::tidy {

std::vector<Finding> check_tree(const std::filesystem::path& root) {
  const SourceTree tree = read_tree(root);
  std::vector<Finding> findings;
  check_layers(tree, findings);
  check_targets(tree, findings);
  check_functions(tree, findings);
  check_usage(tree, findings);
  check_text(tree, findings);
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.file, a.line) < std::tie(b.file, b.line);
  });
  return findings;
}

}  // namespace tutti::tidy
