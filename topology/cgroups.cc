#include "topology/cgroups.h"

#include <fstream>

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMount = "sys/fs/cgroup";

// Adds the cgroup `path` and those that contain it. `mount`: the folder of the outermost one.
void add_groups(int version, const fs::path& mount, const std::string& path, std::vector<Cgroup>& groups) {
  for (fs::path group = path;; group = group.parent_path()) {
    groups.push_back({.version = version, .path = group.string(), .folder = mount / group.relative_path()});
    if (!group.has_relative_path()) return;
  }
}

}  // namespace

std::vector<Cgroup> cgroups_of_this_process(std::string_view controller, const fs::path& root) {
  std::vector<Cgroup> groups;
  std::ifstream lines(root / "proc/self/cgroup");
  // Lines have the form "9:cpu,memory:/job", or "0::/job" in version 2.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") add_groups(2, root / kMount, path, groups);
    if (controllers.find("," + std::string(controller) + ",") != std::string::npos)
      add_groups(1, root / kMount / controller, path, groups);
  }
  return groups;
}

}  // namespace tutti
