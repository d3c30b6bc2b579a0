// tutti_tidy ROOT: checks the source tree at ROOT against the rules of the project. Exit status: 0 if all rules hold;
// 1 if rules are broken, with a line for each place; 2 if ROOT is not a folder.
#include <cstdio>
#include <filesystem>

#include "tidy.h"

int main(int argc, char** argv) {
  if (argc != 2 || !std::filesystem::is_directory(argv[1])) {
    std::fprintf(stderr, "usage: tutti_tidy ROOT, where ROOT is a folder\n");
    return 2;
  }
  const auto findings = tutti::tidy::check_tree(std::filesystem::canonical(argv[1]));
  for (const tutti::tidy::Finding& finding : findings) {
    std::printf("%s:%zu: %s: %s\n", finding.file.c_str(), finding.line, finding.rule.c_str(), finding.message.c_str());
  }
  std::printf("%zu findings\n", findings.size());
  return findings.empty() ? 0 : 1;
}
