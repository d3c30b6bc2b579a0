#include "tools/topo/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/byte_text.h"
#include "cuda/driver.h"
#include "tools/topo/graph.h"
#include "tutti/version.h"

namespace tutti::tool {
namespace {

using nlohmann::json;

constexpr int kArchitecturesPerMajor = 10;  // sm_86 is compute capability 8.6
constexpr std::size_t kShortUuid = 12;      // length of "GPU-" and 8 digits; nvidia-smi accepts such a short UUID

std::string_view name_of(DeviceCode::Form kind) {
  switch (kind) {
    case DeviceCode::Form::kNone: return "none";
    case DeviceCode::Form::kBinary: return "binary";
    case DeviceCode::Form::kPtx: return "ptx";
    case DeviceCode::Form::kTooOld: return "too_old";
  }
  return "invalid";
}

std::string text_of(const DeviceCode& code) {
  switch (code.kind) {
    case DeviceCode::Form::kNone: return "none";
    case DeviceCode::Form::kBinary: return fmt::format("sm_{}", code.architecture);
    case DeviceCode::Form::kPtx: return fmt::format("by PTX of compute_{}", code.architecture);
    case DeviceCode::Form::kTooOld: return "none: too old";
  }
  return "invalid";
}

std::string size_text(std::uint64_t bytes) { return bytes == 0 ? "unknown" : text_of_bytes(bytes); }

std::vector<std::size_t> allowed_cpus(const HostTopology& host) {
  std::vector<std::size_t> cpus;
  for (std::size_t cpu = 0; cpu < host.cpus.size(); ++cpu) {
    if (host.cpus[cpu]) cpus.push_back(cpu);
  }
  return cpus;
}

// Formats ascending numbers as ranges, for example "0-3, 8", similar to the lists of CPUs of taskset.
std::string ranges_text(const std::vector<std::size_t>& numbers) {
  std::vector<std::string> ranges;
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    ranges.push_back(first == last ? fmt::format("{}", numbers[first])
                                   : fmt::format("{}-{}", numbers[first], numbers[last]));
    first = last + 1;
  }
  return fmt::format("{}", fmt::join(ranges, ", "));
}

std::string version_text(std::uint32_t tenths) { return fmt::format("{}.{}", tenths / 10, tenths % 10); }

std::string text_of(const GpuPath& path, bool itself) {
  if (itself) return "-";
  std::string links;
  if (path.nvlinks.count > 0) {
    const NvLinks& nvlinks = path.nvlinks;
    links =
        fmt::format("NVLink{} x {}{}", nvlinks.version_tenths == 0 ? "" : " " + version_text(nvlinks.version_tenths),
                    nvlinks.count, nvlinks.by_switch ? " by a switch" : "");
  }
  if (!path.access) return links.empty() ? "none" : "none (" + links + ")";
  std::string text = path.same_gpu ? "same GPU" : links.empty() ? "PCIe" : links;
  return path.atomics ? text : text + ", no atomics";
}

std::string host_text(const Machine& machine) {
  const HostTopology& host = machine.host;
  const std::string limit =
      host.cpu_limit == 0 ? "no limit" : fmt::format("limited to {} by the cgroup", host.cpu_limit);
  return fmt::format("CPUs    {} cores for this process: {}; {}\n        L2 {}, last level {}; kernels for {}\n",
                     cores_of({host.cpus}, host.cpu_limit), ranges_text(allowed_cpus(host)), limit,
                     size_text(host.l2_bytes), size_text(host.last_level_bytes), machine.simd);
}

// One line about the processors: the numbers of sockets, cores and NUMA nodes, and the caches. Empty if they are
// unknown.
std::string processors_text(const Processors& processors) {
  if (processors.nodes.empty()) return {};
  std::string text = fmt::format("        sockets {}, cores {}, NUMA nodes {}:", processors.packages, processors.cores,
                                 processors.nodes.size());
  for (const CacheGroup& cache : processors.caches) {
    text += fmt::format(" {} x {} {}{}", cache.count, size_text(cache.bytes), cache.name,
                        &cache == &processors.caches.back() ? "" : ",");
  }
  return text + "\n";
}

std::string device_code_text(const Machine& machine) {
  if (machine.architectures.empty()) {
    return "code    this build has no device code (scripts/build cuda, where nvcc is found)\n";
  }
  return fmt::format("code    device code for sm_{}, later ones by PTX of compute_{}\n",
                     fmt::join(machine.architectures, ", sm_"), machine.architectures.back());
}

std::string gpus_text(const Machine& machine) {
  std::vector<std::vector<std::string>> rows = {
      {"GPU", "name", "uuid", "PCI", "memory", "SMs", "capability", "device code"}};
  for (std::size_t i = 0; i < machine.gpus.gpus.size(); ++i) {
    const Gpu& gpu = machine.gpus.gpus[i];
    rows.push_back({fmt::format("{}", i), gpu.name + (gpu.mig_enabled.value_or(false) ? " (MIG)" : ""),
                    gpu.uuid.substr(0, kShortUuid), gpu.pci_id, size_text(gpu.memory_bytes),
                    fmt::format("{}", gpu.multiprocessors),
                    fmt::format("{}.{}", gpu.capability_major, gpu.capability_minor),
                    text_of(device_code_for(gpu, machine.architectures))});
  }
  return "\n" + columns_text(rows);
}

std::string paths_text(const GpuTopology& gpus) {
  std::vector<std::vector<std::string>> rows(1, {"GPU"});
  for (std::size_t to = 0; to < gpus.gpus.size(); ++to) rows.front().push_back(fmt::format("{}", to));
  for (std::size_t from = 0; from < gpus.gpus.size(); ++from) {
    rows.push_back({fmt::format("{}", from)});
    for (std::size_t to = 0; to < gpus.gpus.size(); ++to) {
      rows.back().push_back(text_of(gpus.path(from, to), from == to));
    }
  }
  return "\nHow the GPU of the row reaches the memory of the GPU of the column:\n\n" + columns_text(rows);
}

json numa_json(const Processors& processors) {
  json nodes = json::array();
  for (const NumaNode& node : processors.nodes) {
    nodes.push_back({{"number", node.number}, {"memory_bytes", node.memory_bytes}, {"cpus", node.cpus}});
  }
  return nodes;
}

json caches_json(const Processors& processors) {
  json caches = json::array();
  for (const CacheGroup& cache : processors.caches) {
    caches.push_back(
        {{"name", cache.name}, {"bytes", cache.bytes}, {"count", cache.count}, {"cpus_each", cache.cpus_each}});
  }
  return caches;
}

json host_json(const Machine& machine) {
  const HostTopology& host = machine.host;
  return {{"cores", cores_of({host.cpus}, host.cpu_limit)},
          {"cpus", allowed_cpus(host)},
          {"cpu_limit", host.cpu_limit == 0 ? json(nullptr) : json(host.cpu_limit)},
          {"l2_bytes", host.l2_bytes == 0 ? json(nullptr) : json(host.l2_bytes)},
          {"last_level_bytes", host.last_level_bytes == 0 ? json(nullptr) : json(host.last_level_bytes)},
          {"simd", machine.simd},
          {"numa_nodes", numa_json(machine.processors)},
          {"caches", caches_json(machine.processors)}};
}

json gpu_json(const Gpu& gpu, const Machine& machine, std::size_t number) {
  const DeviceCode code = device_code_for(gpu, machine.architectures);
  return {{"number", number},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci_id", gpu.pci_id},
          {"memory_bytes", gpu.memory_bytes},
          {"multiprocessors", gpu.multiprocessors},
          {"capability", fmt::format("{}.{}", gpu.capability_major, gpu.capability_minor)},
          {"device_code", name_of(code.kind)},
          {"device_code_architecture", code.architecture == 0 ? json(nullptr) : json(code.architecture)},
          {"mig_enabled", gpu.mig_enabled ? json(*gpu.mig_enabled) : json(nullptr)}};
}

json path_json(const GpuPath& path, std::size_t from, std::size_t to) {
  const NvLinks& links = path.nvlinks;
  return {{"from", from},
          {"to", to},
          {"same_gpu", path.same_gpu},
          {"access", path.access},
          {"atomics", path.atomics},
          {"nvlinks", links.count},
          {"nvlink_version", links.version_tenths == 0 ? json(nullptr) : json(version_text(links.version_tenths))},
          {"nvlink_switch", links.by_switch}};
}

}  // namespace

DeviceCode device_code_for(const Gpu& gpu, std::span<const int> architectures) {
  if (architectures.empty()) return {};
  const int capability = gpu.capability_major * kArchitecturesPerMajor + gpu.capability_minor;
  // Machine code runs on GPUs of the same major version of compute capability and of an equal or higher minor
  // version. The newest such code is used, as the driver does.
  const auto newest = std::find_if(architectures.rbegin(), architectures.rend(), [&](int architecture) {
    return architecture / kArchitecturesPerMajor == gpu.capability_major && architecture <= capability;
  });
  if (newest != architectures.rend()) return {DeviceCode::Form::kBinary, *newest};
  if (architectures.back() <= capability) return {DeviceCode::Form::kPtx, architectures.back()};
  return {DeviceCode::Form::kTooOld, 0};
}

CallPlacement call_placement(const Machine& machine) {
  const GpuTopology& gpus = machine.gpus;
  if (gpus.gpus.empty()) return {false, "there is no GPU"};
  if (machine.architectures.empty()) return {false, "this build has no device code"};
  for (std::size_t i = 0; i < gpus.gpus.size(); ++i) {
    if (device_code_for(gpus.gpus[i], machine.architectures).kind == DeviceCode::Form::kTooOld) {
      return {false, fmt::format("the device code has nothing for GPU {}", i)};
    }
  }
  if (const auto pair = first_unreachable(gpus)) {
    return {false, fmt::format("GPU {} does not reach GPU {}", pair->from, pair->to)};
  }
  return {true, gpus.gpus.size() == 1 ? "there is one GPU" : "all GPUs reach each other"};
}

std::string to_text(const Machine& machine) {
  std::string text = host_text(machine) + processors_text(machine.processors);
  const GpuTopology& gpus = machine.gpus;
  if (!gpus.no_driver.empty()) return text + fmt::format("GPUs    none: {}\n", gpus.no_driver);
  text += fmt::format("driver  CUDA {}\n", cuda::version_text(gpus.driver_version));
  text += gpus.no_nvml.empty() ? "" : fmt::format("NVLink  unknown: {}\n", gpus.no_nvml);
  text += device_code_text(machine);
  if (!gpus.gpus.empty()) text += gpus_text(machine);
  if (gpus.gpus.size() > 1) text += paths_text(gpus);
  const CallPlacement placement = call_placement(machine);
  text += fmt::format("\nCalls on device memory of ranks on {} can go {}: {}.\n",
                      gpus.gpus.size() == 1 ? "this GPU" : "all of these GPUs",
                      placement.on_device ? "on the device" : "by the host only", placement.reason);
  return text;
}

json to_json(const Machine& machine) {
  const GpuTopology& gpus = machine.gpus;
  const CallPlacement placement = call_placement(machine);
  json document = {{"schema", "tutti-topo"},
                   {"version", 1},
                   {"tutti_version", std::string(version())},
                   {"host", host_json(machine)},
                   {"driver", gpus.driver_version == 0 ? json(nullptr) : json(cuda::version_text(gpus.driver_version))},
                   {"no_driver", gpus.no_driver.empty() ? json(nullptr) : json(gpus.no_driver)},
                   {"no_nvml", gpus.no_nvml.empty() ? json(nullptr) : json(gpus.no_nvml)},
                   {"architectures", machine.architectures},
                   {"gpus", json::array()},
                   {"paths", json::array()},
                   {"calls_on_device", placement.on_device},
                   {"calls_reason", placement.reason}};
  for (std::size_t from = 0; from < gpus.gpus.size(); ++from) {
    document["gpus"].push_back(gpu_json(gpus.gpus[from], machine, from));
    for (std::size_t to = 0; to < gpus.gpus.size(); ++to) {
      if (from != to) document["paths"].push_back(path_json(gpus.path(from, to), from, to));
    }
  }
  return document;
}

}  // namespace tutti::tool
