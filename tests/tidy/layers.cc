// Who may include whom. The table is the house's order of folders; a folder that is not in it has to be given its place
// here.
#include <algorithm>
#include <array>
#include <set>

#include "rules.h"

namespace tutti::tidy {
namespace {

struct Folder {
  std::string_view path;
  std::string_view may_use;  // a space before and after each; "*": any
};

// A folder may always include itself. The longest path that fits a file is its folder.
constexpr auto kFolders = std::to_array<Folder>({
    {"include", ""},
    {"src/base", " include "},
    {"src/cuda", " include src/base "},  // the driver, opened at run time
    {"src/plan", " include src/base "},
    {"topology", " include src/base src/cuda "},
    {"src/algorithms", " include src/base src/plan topology "},
    {"src/model", " include src/base src/plan topology src/algorithms "},
    {"transports", " include src/base "},  // never plan
    {"kernels", " include src/base "},     // never transports
    {"src/executor", " include src/base src/cuda src/plan topology src/algorithms src/model transports kernels "},
    {"src/bootstrap", " include src/base transports "},
    {"src/job", " include src/base src/plan topology transports src/bootstrap "},
    {"src/membership", " include src/base transports src/bootstrap src/job "},
    {"src/engine", " include src/base src/plan transports src/executor src/job "},
    {"src/device", " include src/base src/cuda src/plan transports kernels src/executor src/job src/engine "},
    {"src/selection", " include src/base src/plan src/algorithms src/model transports src/executor "},
    {"src/communicator",
     " include src/base src/plan topology src/algorithms transports src/executor src/bootstrap src/job src/membership "
     "src/engine src/device src/selection "},
    {"src/standalone", " kernels "},  // code of other projects' libraries, for the shared ones
    {"src/nccl", " include src/base src/cuda kernels src/bootstrap src/communicator "},
    {"tools/common", " include src/base "},
    {"tools/run", " include src/base tools/common "},
    // job: which transports carry messages between machines
    {"tools/topo", " include src/base src/cuda topology kernels src/job tools/common "},
    // bootstrap: whether this process is a rank of a job; device: whether the GPUs carried a call out
    {"tools/perf",
     " include src/base src/cuda topology src/algorithms kernels src/bootstrap src/device tools/common tools/run "},
    {"tools/plan", " include src/base src/plan topology src/algorithms tools/common tools/perf "},
    {"tools/sim", " include src/base src/plan topology src/algorithms src/model tools/common tools/topo tools/perf "},
    {"tools/points", " include src/base src/plan topology src/algorithms src/model tools/common tools/sim "},
    {"tools/tune",
     " include src/base topology src/algorithms src/model kernels src/selection tools/common tools/run tools/perf "
     "tools/sim "},
    {"tools/recorder", " include src/base tools/common "},
    {"tools/train", " include topology tools/common tools/run "},
    {"tools",
     " include src/base tools/common tools/run tools/topo tools/perf tools/plan tools/sim tools/points tools/tune "
     "tools/recorder tools/train "},
    // tools/perf: the machine's own bound; the others: what they add to the time that the bytes take
    {"bench",
     " include src/base src/cuda src/plan src/algorithms src/executor src/job src/communicator kernels transports "
     "tools/common tools/perf "},
    {"train", " include tools/common "},  // messages, files, drawings
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

bool may_include(const Folder& from, const Folder& to) {
  if (&from == &to || from.may_use == "*") return true;
  return from.may_use.find(" " + std::string(to.path) + " ") != std::string_view::npos;
}

void check_file(const std::string& path, const SourceFile& file, std::vector<Finding>& findings) {
  const Folder* from = find_folder(path);
  if (from == nullptr) {
    findings.push_back({"layer", path, 1, "its folder has no place in the order of the folders"});
    return;
  }
  for (const Include& include : file.includes) {
    if (include.target.empty()) {
      if (include.quoted) findings.push_back({"include", path, include.line, "no file of the tree is " + include.name});
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

// Depth-first over the includes; names a cycle at the include that closes it.
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
  const auto has = [](std::string_view path, const Folder& folder) {  // files of the folder are under the path
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
