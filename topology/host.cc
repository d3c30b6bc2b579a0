#include "topology/host.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/paths.h"
#include "topology/cgroups.h"

namespace tutti {
namespace {

constexpr std::size_t kCpusPerDigit = 4;
constexpr std::size_t kMaxCaches = 16;  // limit on the caches of one core that are read; usual machines have 4
constexpr std::string_view kDigits = "0123456789abcdef";

// Returns the CPUs on which the calling thread may run. sched_getaffinity() fails if the set that it is to fill is
// smaller than the kernel's own, so the size is doubled until it succeeds. Linux on x86 supports at most 8,192 CPUs. If
// it fails with kMostCpus, too, returns only CPU 0.
std::vector<bool> cpus_by_affinity() {
  constexpr std::size_t kMostCpus = 16'384;
  for (std::size_t count = CPU_SETSIZE; count <= kMostCpus; count *= 2) {
    std::vector<cpu_set_t> sets(count / CPU_SETSIZE);
    if (sched_getaffinity(0, sets.size() * sizeof(cpu_set_t), sets.data()) != 0) continue;
    std::vector<bool> cpus(count, false);
    for (std::size_t cpu = 0; cpu < count; ++cpu) {
      cpus[cpu] = CPU_ISSET(cpu % CPU_SETSIZE, &sets[cpu / CPU_SETSIZE]);
    }
    return cpus;
  }
  return {true};
}

std::string first_word_of(const std::string& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

}  // namespace

std::uint32_t cores_of(const std::vector<std::vector<bool>>& cpus, std::uint32_t cpu_limit) {
  std::vector<bool> together;
  for (const std::vector<bool>& set : cpus) {
    if (set.size() > together.size()) together.resize(set.size(), false);
    for (std::size_t cpu = 0; cpu < set.size(); ++cpu) together[cpu] = together[cpu] || set[cpu];
  }
  const auto cores = static_cast<std::uint32_t>(std::ranges::count(together, true));
  return std::max(1u, cpu_limit == 0 ? cores : std::min(cores, cpu_limit));
}

std::string pack_cpus(const std::vector<bool>& cpus) {
  std::string text;
  for (std::size_t first = 0; first < cpus.size(); first += kCpusPerDigit) {
    std::size_t digit = 0;
    for (std::size_t i = 0; i < kCpusPerDigit && first + i < cpus.size(); ++i) {
      digit |= std::size_t{cpus[first + i]} << i;
    }
    text += kDigits[digit];
  }
  return text.substr(0, text.find_last_not_of('0') + 1);
}

std::vector<bool> unpack_cpus(std::string_view text) {
  std::vector<bool> cpus;
  for (const char character : text) {
    const std::size_t digit = kDigits.find(character);
    if (digit == std::string_view::npos) break;
    for (std::size_t i = 0; i < kCpusPerDigit; ++i) cpus.push_back((digit >> i & 1) != 0);
  }
  return cpus;
}

std::uint32_t cores_of_cpu_max(const std::string& line) {
  std::istringstream in(line);
  std::int64_t quota_us = 0;
  std::int64_t period_us = 0;
  if (!(in >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return 0;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::uint32_t>(std::min(kMost, quota_us / period_us + (quota_us % period_us > 0 ? 1 : 0)));
}

std::uint32_t cgroup_cpu_limit(const std::string& root) {
  std::uint32_t least = 0;
  for (const Cgroup& group : cgroups_of_this_process("cpu", root)) {
    std::string line;
    if (group.version == 2) {
      std::ifstream file(join_path(group.folder, "cpu.max"));
      std::getline(file, line);
    } else {
      line = first_word_of(join_path(group.folder, "cpu.cfs_quota_us")) + " " +
             first_word_of(join_path(group.folder, "cpu.cfs_period_us"));
    }
    const std::uint32_t cores = cores_of_cpu_max(line);
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
  }
  return least;
}

std::uint64_t bytes_of_size(const std::string& text) {
  std::istringstream in(text);
  std::uint64_t number = 0;
  if (!(in >> number)) return 0;
  char unit = ' ';
  in >> unit;
  const std::uint64_t unit_bytes = unit == 'K' ? 1ull << 10 : unit == 'M' ? 1ull << 20 : unit == 'G' ? 1ull << 30 : 1;
  return number * unit_bytes;
}

CacheSizes read_caches(const std::string& folder) {
  CacheSizes caches;
  for (std::size_t i = 0; i < kMaxCaches; ++i) {
    const std::string cache = join_path(folder, "index" + std::to_string(i));
    const std::string level = first_word_of(join_path(cache, "level"));
    if (level.empty()) break;
    if (first_word_of(join_path(cache, "type")) == "Instruction") continue;
    const std::uint64_t bytes = bytes_of_size(first_word_of(join_path(cache, "size")));
    if (level == "2") caches.l2_bytes = bytes;
    if (level == "3") caches.l3_bytes = bytes;
  }
  return caches;
}

HostTopology discover_host() {
  HostTopology host;
  host.cpus = cpus_by_affinity();
  host.cpu_limit = cgroup_cpu_limit();
  const auto cpu = std::ranges::find(host.cpus, true) - host.cpus.begin();
  const CacheSizes caches = read_caches("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache");
  host.l2_bytes = caches.l2_bytes;
  host.last_level_bytes = std::max(caches.l2_bytes, caches.l3_bytes);
  return host;
}

}  // namespace tutti
