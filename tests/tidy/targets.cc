// Compares the graph of CMake libraries with the graph of includes. A folder may link only those folders that its
// files may include. It must link, directly or indirectly, all folders that its files include. So both graphs show
// the same structure.
#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>

#include "rules.h"

namespace tutti::tidy {
namespace {

// The library of this folder implements the public headers in include/. So all folders that may include them may link
// it.
constexpr std::string_view kPublicLibrary = "src/communicator";

struct Library {
  std::string folder;  // folder of its CMakeLists.txt
  std::size_t line = 0;
  std::set<std::string> links;  // other libraries of the tree that it links
};
using Libraries = std::map<std::string, Library>;

void read_libraries(const std::string& folder, const SourceFile& file, Libraries& libraries) {
  std::string text;
  for (const std::string& line : file.lines) text += line.substr(0, line.find('#')) + "\n";
  static const std::regex call(R"(tutti_library\((\w+)([^)]*)\))");
  static const std::regex link(R"(tutti::(\w+))");
  for (std::sregex_iterator found(text.begin(), text.end(), call), end; found != end; ++found) {
    Library& library = libraries[(*found)[1]];
    library.folder = folder;
    const auto before = text.begin() + found->position();
    library.line = 1 + static_cast<std::size_t>(std::count(text.begin(), before, '\n'));
    const std::string arguments = (*found)[2];
    for (std::sregex_iterator name(arguments.begin(), arguments.end(), link); name != end; ++name) {
      library.links.insert((*name)[1]);
    }
  }
}

class TargetGraph {
 public:
  TargetGraph(const SourceTree& tree, std::vector<Finding>& findings) : tree_(tree), findings_(findings) {
    for (const auto& [path, file] : tree) {
      if (path.ends_with("CMakeLists.txt") && !path.starts_with("tests/")) {
        read_libraries(folder_of(path), file, libraries_);
      }
    }
    for (const auto& [name, library] : libraries_) folders_[library.folder].insert(name);
  }

  void check() {
    for (const auto& [name, library] : libraries_) {
      for (const std::string& other : library.links) check_link(name, library, other);
    }
    for (const auto& [path, file] : tree_) {
      if (is_cxx(path)) check_includes(path, file);
    }
  }

 private:
  void check_link(const std::string& name, const Library& library, const std::string& other) {
    const auto found = libraries_.find(other);
    if (found == libraries_.end()) return;  // for example a library of the tests
    const std::string& folder = found->second.folder;
    if (folder == library.folder) return;
    if (reach(other).contains(name)) return report(library, name + " and " + other + " link each other");
    const bool is_public = folder == kPublicLibrary && may_use(library.folder, "include");
    if (!is_public && !may_use(library.folder, folder)) {
      report(library, name + " links " + other + ", but " + library.folder + " may not use " + folder);
    }
  }

  void check_includes(const std::string& path, const SourceFile& file) {
    const auto own = folder_with_library(path);
    if (!own || path.starts_with("bench/")) return;  // the programs of bench link more libraries than its libraries do
    for (const Include& include : file.includes) {
      const auto other = include.target.empty() ? std::nullopt : folder_with_library(include.target);
      if (!other || *other == *own || !may_use(*own, *other) || links(*own, *other)) continue;
      if (!reported_.emplace(*own, *other).second) continue;
      const Library& library = libraries_.at(*folders_.at(*own).begin());
      report(library, "no library of " + *own + " links one of " + *other + ", which " + path + " includes");
    }
  }

  // The nearest folder above the file for which there is a library.
  std::optional<std::string> folder_with_library(const std::string& path) const {
    for (std::string folder = folder_of(path); !folder.empty(); folder = folder_of(folder)) {
      if (folders_.contains(folder)) return folder;
    }
    return std::nullopt;
  }

  // Whether a library of `folder` links a library of `other`, directly or indirectly.
  bool links(const std::string& folder, const std::string& other) {
    for (const std::string& name : folders_.at(folder)) {
      for (const std::string& reached : reach(name)) {
        if (libraries_.contains(reached) && libraries_.at(reached).folder == other) return true;
      }
    }
    return false;
  }

  // All libraries that this library links, directly or indirectly.
  const std::set<std::string>& reach(const std::string& name) {
    const auto [found, is_new] = reach_.try_emplace(name);
    if (!is_new || !libraries_.contains(name)) return found->second;
    for (const std::string& other : libraries_.at(name).links) {
      found->second.insert(other);
      const std::set<std::string> more = reach(other);
      found->second.insert(more.begin(), more.end());
    }
    return found->second;
  }

  void report(const Library& library, std::string message) {
    findings_.push_back({"target", library.folder + "/CMakeLists.txt", library.line, std::move(message)});
  }

  const SourceTree& tree_;
  std::vector<Finding>& findings_;
  Libraries libraries_;
  std::map<std::string, std::set<std::string>> folders_;  // folder -> its libraries
  std::map<std::string, std::set<std::string>> reach_;
  std::set<std::pair<std::string, std::string>> reported_;
};

}  // namespace

void check_targets(const SourceTree& tree, std::vector<Finding>& findings) { TargetGraph(tree, findings).check(); }

}  // namespace tutti::tidy
