#include "topology/host.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

namespace tutti {
namespace {

constexpr std::size_t kCpusPerDigit = 4;
constexpr std::string_view kDigits = "0123456789abcdef";

std::vector<bool> cpus_by_affinity() {
  std::vector<bool> cpus(CPU_SETSIZE, false);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {true};
  for (std::size_t cpu = 0; cpu < cpus.size(); ++cpu) cpus[cpu] = CPU_ISSET(cpu, &set);
  return cpus;
}

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};

std::uint64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
  hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
  return cache == nullptr ? 0 : cache->attr->cache.size;
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
  std::uint64_t quota_us = 0;
  std::uint64_t period_us = 0;
  if (!(in >> quota_us >> period_us) || quota_us == 0 || period_us == 0) return 0;
  return static_cast<std::uint32_t>((quota_us + period_us - 1) / period_us);
}

HostTopology discover_host() {
  HostTopology host;
  host.cpus = cpus_by_affinity();
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  if (std::string line; std::getline(limit, line)) host.cpu_limit = cores_of_cpu_max(line);
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return host;
  const std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDeleter> topology(raw);
  if (hwloc_topology_load(raw) != 0) return host;
  host.l2_bytes = cache_bytes(raw, HWLOC_OBJ_L2CACHE);
  host.last_level_bytes = std::max(host.l2_bytes, cache_bytes(raw, HWLOC_OBJ_L3CACHE));
  return host;
}

}  // namespace tutti
