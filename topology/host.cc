#include "topology/host.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

namespace tutti {
namespace {

std::uint32_t cores_by_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&set)));
}

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};

std::uint64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
  hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
  return cache == nullptr ? 0 : cache->attr->cache.size;
}

}  // namespace

std::uint32_t cores_of_cpu_max(const std::string& line) {
  std::istringstream in(line);
  std::uint64_t quota_us = 0;
  std::uint64_t period_us = 0;
  if (!(in >> quota_us >> period_us) || quota_us == 0 || period_us == 0) return 0;
  return static_cast<std::uint32_t>((quota_us + period_us - 1) / period_us);
}

HostTopology discover_host() {
  HostTopology host;
  host.cores = cores_by_affinity();
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  if (std::string line; std::getline(limit, line)) {
    if (const std::uint32_t cores = cores_of_cpu_max(line); cores > 0) host.cores = std::min(host.cores, cores);
  }
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return host;
  const std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDeleter> topology(raw);
  if (hwloc_topology_load(raw) != 0) return host;
  host.l2_bytes = cache_bytes(raw, HWLOC_OBJ_L2CACHE);
  host.last_level_bytes = std::max(host.l2_bytes, cache_bytes(raw, HWLOC_OBJ_L3CACHE));
  return host;
}

}  // namespace tutti
