#include "topology/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace tutti {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  // Nothing is returned for a word that is not a number, for example "max".
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// Returns the number after the word `name` in the file, for example 12345 in "MemAvailable:  12345 kB" or in
// "inactive_file 12345". Returns nothing if the file cannot be read or does not contain it.
std::optional<std::uint64_t> number_after(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t number = 0;
    if (word == name && file >> number) return number;
  }
  return std::nullopt;
}

// The folder of memory cgroups in one version of cgroups, and the names of its files.
struct Version {
  std::string_view mount;
  std::string_view limit;
  std::string_view used;
  std::string_view reclaimable;  // entry in memory.stat: inactive cached pages of files, which the kernel drops first
};
constexpr Version kVersion1 = {.mount = "sys/fs/cgroup/memory",
                               .limit = "memory.limit_in_bytes",
                               .used = "memory.usage_in_bytes",
                               .reclaimable = "total_inactive_file"};
constexpr Version kVersion2 = {
    .mount = "sys/fs/cgroup", .limit = "memory.max", .used = "memory.current", .reclaimable = "inactive_file"};

// Lowers memory.group_bytes to the memory that is left in the cgroup `path` or in a cgroup that contains it, if that is
// less. In a container, the path may name cgroups outside the container, which have no folder here and are skipped. The
// container's own cgroup is then the mounted folder itself, which is examined last.
void examine_groups(const fs::path& root, const Version& version, const std::string& path, AvailableMemory& memory) {
  for (fs::path group = path;; group = group.parent_path()) {
    const fs::path folder = root / version.mount / group.relative_path();
    const auto limit = number_in(folder / version.limit);
    const auto used = number_in(folder / version.used);
    if (limit && used) {
      const std::uint64_t cached = number_after(folder / "memory.stat", version.reclaimable).value_or(0);
      const std::uint64_t held = *used - std::min(*used, cached);
      const std::uint64_t left = *limit - std::min(*limit, held);
      // In version 1, a limit near 2^63 means that there is no limit.
      if (*limit < (std::uint64_t{1} << 62) && left < memory.group_bytes) {
        memory.group_bytes = left;
        memory.group = group.string();
      }
    }
    if (!group.has_relative_path()) return;
  }
}

}  // namespace

std::string_view AvailableMemory::limit() const {
  if (address_bytes < shared_bytes()) return "limit of ulimit -v";
  return group_bytes < machine_bytes ? "limit of a memory cgroup" : "of this machine";
}

AvailableMemory available_memory(const fs::path& root) {
  AvailableMemory memory;
  rlimit address_space{};
  if (::getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const std::uint64_t pages = number_in(root / "proc/self/statm").value_or(0);
    const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    memory.address_bytes = address_space.rlim_cur - std::min<std::uint64_t>(address_space.rlim_cur, used);
  }
  if (const auto kib = number_after(root / "proc/meminfo", "MemAvailable:")) memory.machine_bytes = *kib * 1024;
  std::ifstream groups(root / "proc/self/cgroup");
  // Lines have the form "9:cpu,memory:/job", or "0::/job" in version 2.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") examine_groups(root, kVersion2, path, memory);
    if (controllers.find(",memory,") != std::string::npos) examine_groups(root, kVersion1, path, memory);
  }
  return memory;
}

}  // namespace tutti
