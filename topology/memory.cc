#include "topology/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/paths.h"
#include "topology/cgroups.h"

namespace tutti {
namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  // Nothing is returned for a word that is not a number, for example "max".
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// Returns the number after the word `name` in the file. Words are separated by white space, so a colon belongs to its
// word: the result for "MemAvailable:" is 12345 in "MemAvailable:  12345 kB", and so is that for "inactive_file" in
// "inactive_file 12345". Returns nothing if the file cannot be read or does not contain the word with a number after
// it.
std::optional<std::uint64_t> number_after(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t number = 0;
    if (word == name && file >> number) return number;
  }
  return std::nullopt;
}

// The names of a memory cgroup's files in one version of cgroups.
struct FileNames {
  std::string_view limit;
  std::string_view used;
  std::string_view reclaimable;  // entry in memory.stat: inactive cached pages of files, which the kernel drops first
};
constexpr FileNames kVersion1 = {
    .limit = "memory.limit_in_bytes", .used = "memory.usage_in_bytes", .reclaimable = "total_inactive_file"};
constexpr FileNames kVersion2 = {.limit = "memory.max", .used = "memory.current", .reclaimable = "inactive_file"};

// Lowers memory.group_bytes to the memory that is left in the cgroup, if that is less.
void examine(const Cgroup& group, AvailableMemory& memory) {
  const FileNames& names = group.version == 1 ? kVersion1 : kVersion2;
  const auto limit = number_in(join_path(group.folder, names.limit));
  const auto used = number_in(join_path(group.folder, names.used));
  if (!limit || !used) return;
  const std::uint64_t cached = number_after(join_path(group.folder, "memory.stat"), names.reclaimable).value_or(0);
  const std::uint64_t held = *used - std::min(*used, cached);
  const std::uint64_t left = *limit - std::min(*limit, held);
  // In version 1, a limit near 2^63 means that there is no limit.
  if (*limit >= (std::uint64_t{1} << 62) || left >= memory.group_bytes) return;
  memory.group_bytes = left;
  memory.group = group.path;
}

}  // namespace

std::string_view AvailableMemory::limit() const {
  if (address_bytes < shared_bytes()) return "limit of ulimit -v";
  return group_bytes < machine_bytes ? "limit of a memory cgroup" : "of this machine";
}

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory memory;
  rlimit address_space{};
  if (::getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const std::uint64_t pages = number_in(join_path(root, "proc/self/statm")).value_or(0);
    const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    memory.address_bytes = address_space.rlim_cur - std::min<std::uint64_t>(address_space.rlim_cur, used);
  }
  if (const auto kib = number_after(join_path(root, "proc/meminfo"), "MemAvailable:"))
    memory.machine_bytes = *kib * 1024;
  for (const Cgroup& group : cgroups_of_this_process("memory", root)) examine(group, memory);
  return memory;
}

}  // namespace tutti
