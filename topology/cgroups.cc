#include "topology/cgroups.h"

#include <fstream>

#include "base/paths.h"

namespace tutti {
namespace {

constexpr std::string_view kMount = "sys/fs/cgroup";

// Adds the cgroup `path` and those that contain it. `mount`: the folder of the outermost one.
void add_groups(int version, const std::string& mount, const std::string& path, std::vector<Cgroup>& groups) {
  for (std::string group = path;; group = folder_of(group)) {
    groups.push_back({.version = version, .path = group, .folder = mount + group});
    if (group == "/") return;
  }
}

}  // namespace

std::vector<Cgroup> cgroups_of_this_process(std::string_view controller, const std::string& root) {
  std::vector<Cgroup> groups;
  const std::string mount = join_path(root, kMount);
  std::ifstream lines(join_path(root, "proc/self/cgroup"));
  // Lines have the form "9:cpu,memory:/job", or "0::/job" in version 2.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") add_groups(2, mount, path, groups);
    if (controllers.find("," + std::string(controller) + ",") != std::string::npos)
      add_groups(1, join_path(mount, controller), path, groups);
  }
  return groups;
}

}  // namespace tutti
