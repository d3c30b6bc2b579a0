#include "topology/cpus.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>

#include "topology/xml/values.h"

namespace tutti {
namespace {

constexpr unsigned kWordBits = 32;
constexpr unsigned kMaxCpus = 65'536;

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

Error failure(ErrorCode code, std::string message) { return {code, ErrorScope::kCall, -1, std::move(message)}; }

// Sets the environment variable HWLOC_PLUGINS_BLACKLIST, so that hwloc does not load its plugins for X11, OpenCL, CUDA,
// PCI and the like, which would load further libraries. This file does not need their information. A value that the
// user has set for the variable is kept.
void disable_plugins() {
  constexpr int kNoOverwrite = 0;
  setenv("HWLOC_PLUGINS_BLACKLIST", "hwloc_gl,hwloc_opencl,hwloc_cuda,hwloc_nvml,hwloc_rsmi,hwloc_levelzero,hwloc_pci",
         kNoOverwrite);
}

Result<Topology> load(const std::string& synthetic) {
  disable_plugins();
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0)
    return failure(ErrorCode::kSystem, "hwloc_topology_init has failed: out of memory");
  Topology topology(raw);
  for (const char* name : {"gl", "opencl", "cuda", "nvml", "rsmi", "levelzero", "pci"}) {
    // A failure is ignored, because a component that hwloc does not have need not be disabled.
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, name);
  }
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) {
    return failure(
        ErrorCode::kInvalidArgument,
        fmt::format("hwloc does not understand \"{}\"; write it as \"pack:2 numa:1 core:4 pu:1\"", synthetic));
  }
  if (hwloc_topology_load(raw) != 0) {
    return failure(ErrorCode::kSystem, "hwloc cannot detect this machine; is /sys mounted?");
  }
  return topology;
}

std::string info_of(hwloc_obj_t object, const char* name) {
  const char* value = object == nullptr ? nullptr : hwloc_obj_get_info_by_name(object, name);
  return value == nullptr ? std::string() : std::string(value);
}

std::int32_t number_of(const std::string& text) { return static_cast<std::int32_t>(parse_integer(text).value_or(0)); }

// Formats a set of CPUs in the kernel's format of CPU masks, for example "00000000,0000ffff". The mask has `words`
// 32-bit words. All numbers in `cpus` must be below 32 * `words`.
std::string mask_of(const std::vector<std::uint32_t>& cpus, unsigned words) {
  std::vector<std::uint32_t> bits(words, 0);
  for (const std::uint32_t cpu : cpus) bits[cpu / kWordBits] |= 1U << (cpu % kWordBits);
  std::string mask;
  for (unsigned i = words; i-- > 0;) mask += fmt::format("{}{:08x}", mask.empty() ? "" : ",", bits[i]);
  return mask;
}

// The CPUs of the set whose numbers are below kMaxCpus, in ascending order.
std::vector<std::uint32_t> cpus_of(hwloc_const_cpuset_t set) {
  std::vector<std::uint32_t> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    if (static_cast<unsigned>(cpu) >= kMaxCpus) break;
    cpus.push_back(static_cast<std::uint32_t>(cpu));
  }
  return cpus;
}

// Returns the package (socket) that contains the NUMA node, or that the node contains, or otherwise the first package
// of the machine. Returns null if hwloc reports no package.
hwloc_obj_t package_of(hwloc_topology_t topology, hwloc_obj_t node) {
  for (hwloc_obj_t above = node->parent; above != nullptr; above = above->parent) {
    if (above->type == HWLOC_OBJ_PACKAGE) return above;
  }
  hwloc_obj_t beneath = hwloc_get_next_obj_inside_cpuset_by_type(topology, node->cpuset, HWLOC_OBJ_PACKAGE, nullptr);
  return beneath != nullptr ? beneath : hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, nullptr);
}

NumaNode node_of(hwloc_topology_t topology, hwloc_obj_t object, unsigned words) {
  hwloc_obj_t root = hwloc_get_root_obj(topology);
  hwloc_obj_t package = package_of(topology, object);
  NumaNode node;
  node.number = static_cast<std::int32_t>(object->os_index);
  node.memory_bytes = object->attr->numanode.local_memory;
  node.cpus = cpus_of(object->cpuset);
  node.cpu.affinity = mask_of(node.cpus, words);
  node.cpu.arch = info_of(root, "Architecture");
  node.cpu.vendor = info_of(package, "CPUVendor");
  node.cpu.family = number_of(info_of(package, "CPUFamilyNumber"));
  node.cpu.model = number_of(info_of(package, "CPUModelNumber"));
  return node;
}

std::vector<CacheGroup> caches_of(hwloc_topology_t topology) {
  using Key = std::tuple<int, std::string, std::uint64_t, std::uint32_t>;
  std::map<Key, std::uint32_t, std::greater<>> counts;
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE,
                                      HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L1ICACHE}) {
    for (hwloc_obj_t cache = hwloc_get_next_obj_by_type(topology, type, nullptr); cache != nullptr;
         cache = hwloc_get_next_obj_by_type(topology, type, cache)) {
      char name[16] = {};
      hwloc_obj_type_snprintf(name, sizeof(name), cache, 0);
      const auto cpus = static_cast<std::uint32_t>(std::max(hwloc_bitmap_weight(cache->cpuset), 0));
      ++counts[{static_cast<int>(cache->attr->cache.depth), name, cache->attr->cache.size, cpus}];
    }
  }
  std::vector<CacheGroup> groups;
  for (const auto& [key, count] : counts) {
    std::string name = std::get<1>(key);
    if (name.ends_with("Cache")) name.resize(name.size() - 5);
    groups.push_back({std::move(name), std::get<2>(key), count, std::get<3>(key)});
  }
  return groups;
}

}  // namespace

Result<Processors> discover_processors(const std::string& synthetic) {
  const Result<Topology> loaded = load(synthetic);
  if (!loaded) return loaded.error();
  hwloc_topology_t topology = loaded->get();
  const int last = hwloc_bitmap_last(hwloc_topology_get_complete_cpuset(topology));
  const unsigned words = std::min<unsigned>(static_cast<unsigned>(std::max(last, 0)), kMaxCpus - 1) / kWordBits + 1;
  Processors processors;
  const auto count = [&](hwloc_obj_type_t type) {
    return static_cast<std::uint32_t>(std::max(hwloc_get_nbobjs_by_type(topology, type), 0));
  };
  processors.packages = count(HWLOC_OBJ_PACKAGE);
  processors.cores = count(HWLOC_OBJ_CORE);
  for (hwloc_obj_t node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, nullptr); node != nullptr;
       node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) {
    processors.nodes.push_back(node_of(topology, node, words));
  }
  std::sort(processors.nodes.begin(), processors.nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
  processors.caches = caches_of(topology);
  if (processors.nodes.empty()) return failure(ErrorCode::kSystem, "hwloc finds no NUMA node on this machine");
  return processors;
}

}  // namespace tutti
