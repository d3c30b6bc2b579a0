// Checks which folder may include which, by a table. A new folder must be added to it; the order of its rows does not
// matter. Also reports cycles of includes, quoted includes of files that do not exist, and <filesystem> in the library.
#include <algorithm>
#include <array>
#include <set>

#include "rules.h"

namespace tutti::tidy {
namespace {

// A folder, and the folders that its files may include.
struct Folder {
  std::string_view path;
  std::string_view may_use;  // separated by spaces, with a space at both ends; "*": all folders
};

// A folder may always include itself. The folder of a file is the longest path in the table that matches.
constexpr auto kFolders = std::to_array<Folder>({
    {"include", ""},
    {"src/base", " include "},
    {"src/cuda", " include src/base "},  // the CUDA driver, which is opened at run time
    {"src/plan", " include src/base "},
    {"topology", " include src/base src/cuda "},
    {"src/algorithms", " include src/base src/plan topology "},
    {"src/model", " include src/base src/plan topology src/algorithms "},
    // A library of its own, which may not use malloc(), so it should include only base/system_calls.h (not checked).
    {"src/heap", " src/base "},
    {"transports", " include src/base src/heap "},  // must not know plans
    {"kernels", " include src/base "},              // must not know transports
    {"src/executor", " include src/base src/cuda src/plan topology src/algorithms src/model transports kernels "},
    {"src/bootstrap", " include src/base transports "},
    {"src/job", " include src/base src/plan topology transports src/bootstrap "},
    {"src/membership", " include src/base transports src/bootstrap src/job "},
    {"src/engine", " include src/base src/plan transports src/executor src/job "},
    {"src/device", " include src/base src/cuda src/plan transports kernels src/executor src/job src/engine "},
    {"src/selection", " include src/base src/plan src/algorithms src/model transports src/executor "},
    {"src/communicator",
     " include src/base src/plan topology src/algorithms src/model transports src/executor src/bootstrap src/job "
     "src/membership src/engine src/device src/selection "},
    {"src/standalone", " kernels "},  // parts of fmt and Highway that Tutti's shared libraries bring with them
    {"src/nccl", " include src/base src/cuda kernels src/bootstrap src/communicator "},
    {"tools/common", " include src/base "},
    {"tools/run", " include src/base tools/common "},
    // src/job: for the transports that are available between machines
    {"tools/topo", " include src/base src/cuda topology kernels src/job tools/common "},
    // src/bootstrap: to find out if this process is a rank of a job; src/device: to find out if the GPUs executed a
    // call
    {"tools/perf",
     " include src/base src/cuda topology src/algorithms kernels src/bootstrap src/device tools/common tools/run "},
    {"tools/plan", " include src/base src/plan topology src/algorithms tools/common tools/perf "},
    {"tools/sim", " include src/base src/plan topology src/algorithms src/model tools/common tools/topo tools/perf "},
    {"tools/points", " include src/base src/plan topology src/algorithms src/model tools/common tools/sim "},
    {"tools/tune",
     " include src/base topology src/algorithms src/model kernels src/selection src/communicator tools/common "
     "tools/run tools/perf tools/sim "},
    {"tools/recorder", " include src/base src/plan tools/common "},
    {"tools/train", " include topology tools/common tools/run "},
    {"tools",
     " include src/base tools/common tools/run tools/topo tools/perf tools/plan tools/sim tools/points tools/tune "
     "tools/recorder tools/train "},
    // tools/perf: for the reference of compare; the other folders are the subjects of the benchmarks
    {"bench",
     " include src/base src/cuda src/plan src/algorithms src/executor src/job src/communicator kernels transports "
     "tools/common tools/perf "},
    {"train", " include tools/common "},  // error messages, files and drawings
    {"examples", " include "},
    {"python", " include "},
    {"tests", "*"},
});

const Folder* find_folder(std::string_view path) {
  const Folder* best = nullptr;
  for (const Folder& folder : kFolders) {
    const bool inside = path.starts_with(folder.path) && path.substr(folder.path.size()).starts_with('/');
    if (inside && (best == nullptr || folder.path.size() > best->path.size())) best = &folder;
  }
  return best;
}

// Whether the folder belongs to the library itself, which must survive failed allocations.
bool is_library(std::string_view path) {
  constexpr auto kLibrary =
      std::to_array<std::string_view>({"include/", "src/", "transports/", "kernels/", "topology/"});
  return std::ranges::any_of(kLibrary, [&](std::string_view folder) { return path.starts_with(folder); });
}

bool may_include(const Folder& from, const Folder& to) {
  if (&from == &to || from.may_use == "*") return true;
  return from.may_use.find(" " + std::string(to.path) + " ") != std::string_view::npos;
}

void check_file(const std::string& path, const SourceFile& file, std::vector<Finding>& findings) {
  const Folder* from = find_folder(path);
  if (from == nullptr) {
    findings.push_back({"layer", path, 1, "its folder is not in the table in tests/tidy/layers.cc"});
    return;
  }
  for (const Include& include : file.includes) {
    if (include.target.empty()) {
      if (include.quoted) findings.push_back({"include", path, include.line, "the tree has no file " + include.name});
      if (include.name == "filesystem" && is_library(path)) {
        findings.push_back({"filesystem", path, include.line, "crashes without memory: see src/base/paths.h"});
      }
      continue;
    }
    const Folder* to = find_folder(include.target);
    if (to != nullptr && !may_include(*from, *to)) {
      findings.push_back(
          {"layer", path, include.line,
           std::string(from->path) + " may not use " + std::string(to->path) + " (" + include.name + ")"});
    }
  }
}

// A depth-first search over the includes. It reports a cycle at the include that closes it.
class CycleSearch {
 public:
  CycleSearch(const SourceTree& tree, std::vector<Finding>& findings) : tree_(tree), findings_(findings) {}

  void visit(const std::string& path) {
    if (!seen_.insert(path).second) return;
    trail_.push_back(path);
    for (const Include& include : tree_.at(path).includes) {
      if (include.target.empty()) continue;
      const auto start = std::find(trail_.begin(), trail_.end(), include.target);
      if (start == trail_.end()) {
        visit(include.target);
        continue;
      }
      std::string cycle;
      for (auto step = start; step != trail_.end(); ++step) cycle += *step + " -> ";
      findings_.push_back({"cycle", path, include.line, cycle + include.target});
    }
    trail_.pop_back();
  }

 private:
  const SourceTree& tree_;
  std::vector<Finding>& findings_;
  std::set<std::string> seen_;
  std::vector<std::string> trail_;
};

}  // namespace

bool may_use(std::string_view user, std::string_view used) {
  const auto has = [](std::string_view path, const Folder& folder) {  // whether files of `folder` are under `path`
    const bool is_under = folder.path.starts_with(path) &&
                          (folder.path.size() == path.size() || folder.path.substr(path.size()).starts_with('/'));
    return is_under || find_folder(std::string(path) + "/") == &folder;
  };
  for (const Folder& from : kFolders) {
    if (!has(user, from)) continue;
    for (const Folder& to : kFolders) {
      if (has(used, to) && may_include(from, to)) return true;
    }
  }
  return false;
}

void check_layers(const SourceTree& tree, std::vector<Finding>& findings) {
  CycleSearch cycles(tree, findings);
  for (const auto& [path, file] : tree) {
    if (!is_cxx(path)) continue;
    check_file(path, file, findings);
    cycles.visit(path);
  }
}

}  // namespace tutti::tidy
