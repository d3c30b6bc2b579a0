#include "topology/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "cuda/driver.h"
#include "cuda/nvml.h"

namespace tutti {
namespace {

using cuda::Driver;
using cuda::NvLink;
using cuda::Nvml;

Result<int> attribute(const Driver& driver, cuda::DeviceAttribute which, cuda::CUdevice device) {
  int value = 0;
  TUTTI_TRY(driver.check(driver.api().device_get_attribute(&value, which, device),
                         fmt::format("cuDeviceGetAttribute of GPU {}", device)));
  return value;
}

Result<Gpu> query_driver(const Driver& driver, int number) {
  const cuda::DriverApi& api = driver.api();
  const auto about = [number](std::string_view call) { return fmt::format("{} of GPU {}", call, number); };
  cuda::CUdevice device = 0;
  TUTTI_TRY(driver.check(api.device_get(&device, number), about("cuDeviceGet")));
  Gpu gpu;
  std::array<char, 256> text{};
  TUTTI_TRY(
      driver.check(api.device_get_name(text.data(), static_cast<int>(text.size()), device), about("cuDeviceGetName")));
  gpu.name = text.data();
  cuda::CUuuid uuid;
  TUTTI_TRY(driver.check(api.device_get_uuid(&uuid, device), about("cuDeviceGetUuid")));
  gpu.uuid = uuid_text(uuid);
  TUTTI_TRY(driver.check(api.device_get_pci_bus_id(text.data(), static_cast<int>(text.size()), device),
                         about("cuDeviceGetPCIBusId")));
  gpu.pci_id = text.data();
  std::transform(gpu.pci_id.begin(), gpu.pci_id.end(), gpu.pci_id.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  std::size_t bytes = 0;
  TUTTI_TRY(driver.check(api.device_total_mem(&bytes, device), about("cuDeviceTotalMem")));
  gpu.memory_bytes = bytes;
  for (const auto& [which, value] : {std::pair{cuda::DeviceAttribute::kComputeCapabilityMajor, &gpu.capability_major},
                                     std::pair{cuda::DeviceAttribute::kComputeCapabilityMinor, &gpu.capability_minor},
                                     std::pair{cuda::DeviceAttribute::kMultiprocessorCount, &gpu.multiprocessors}}) {
    const Result<int> answer = attribute(driver, which, device);
    TUTTI_TRY(answer);
    *value = *answer;
  }
  return gpu;
}

Result<GpuPath> query_path(const Driver& driver, int from, int to) {
  const auto about = [&](std::string_view call) { return fmt::format("{} from GPU {} to GPU {}", call, from, to); };
  GpuPath path;
  int answer = 0;
  TUTTI_TRY(driver.check(driver.api().device_can_access_peer(&answer, from, to), about("cuDeviceCanAccessPeer")));
  path.access = answer != 0;
  TUTTI_TRY(
      driver.check(driver.api().device_get_p2p_attribute(&answer, cuda::P2pAttribute::kNativeAtomicSupported, from, to),
                   about("cuDeviceGetP2PAttribute")));
  path.atomics = path.access && answer != 0;
  return path;
}

// Counts the NVLinks of `gpu` whose other end has the type `remote` (GPU, switch). If `pci_id` is not empty, counts
// only the links to the GPU with this PCI id.
NvLinks count_nvlinks(const cuda::GpuInfo& gpu, NvLink::Remote remote, std::string_view pci_id) {
  NvLinks links;
  links.by_switch = remote == NvLink::Remote::kSwitch;
  for (const NvLink& link : gpu.links) {
    if (link.remote != remote || (!pci_id.empty() && link.remote_pci_id != pci_id)) continue;
    links.version_tenths = links.count == 0 ? link.version_tenths : std::min(links.version_tenths, link.version_tenths);
    ++links.count;
  }
  return links;
}

// Returns the direct links between two GPUs. NVML may omit the PCI id of the other GPU in the report of one of them, so
// the report with more links counts. If there are no direct links, returns the links through a switch.
NvLinks links_between(const cuda::GpuInfo& one, const cuda::GpuInfo& other) {
  const NvLinks there = count_nvlinks(one, NvLink::Remote::kGpu, other.pci_id);
  const NvLinks back = count_nvlinks(other, NvLink::Remote::kGpu, one.pci_id);
  if (there.count > 0 || back.count > 0) return there.count >= back.count ? there : back;
  const NvLinks first = count_nvlinks(one, NvLink::Remote::kSwitch, "");
  const NvLinks second = count_nvlinks(other, NvLink::Remote::kSwitch, "");
  if (first.count == 0 || second.count == 0) return {};
  return {std::min(first.count, second.count), std::min(first.version_tenths, second.version_tenths), true};
}

// Returns NVML's information about each GPU of `topology`, which is identified by its PCI id. The element of a GPU that
// NVML does not list is empty.
Result<std::vector<std::optional<cuda::GpuInfo>>> query_nvml(const Nvml& nvml, const GpuTopology& topology) {
  const Result<std::uint32_t> count = nvml.gpu_count();
  TUTTI_TRY(count);
  std::vector<std::optional<cuda::GpuInfo>> known(topology.gpus.size());
  for (std::uint32_t index = 0; index < *count; ++index) {
    Result<cuda::GpuInfo> info = nvml.gpu(index);
    TUTTI_TRY(info);
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (topology.gpus[i].pci_id == info->pci_id) known[i] = *info;
    }
  }
  return known;
}

// Returns the links between two GPUs. If there are only links through switches, the two GPUs need not be in the same
// NVLink fabric, so NVML is asked whether the pair is connected. If NVML is too old for the question, they are taken as
// connected.
Result<NvLinks> links_of_pair(const Nvml& nvml, const cuda::GpuInfo& one, const cuda::GpuInfo& other) {
  const NvLinks links = links_between(one, other);
  if (!links.by_switch) return links;
  const Result<cuda::PeerAccess> reach = nvml.reach(one.index, other.index);
  if (!reach && reach.error().code == ErrorCode::kUnsupported) return links;
  TUTTI_TRY(reach);
  return reach->nvlink ? links : NvLinks{};
}

Status add_nvlinks(GpuTopology& topology) {
  const Result<Nvml> nvml = Nvml::open();
  if (!nvml) {
    topology.no_nvml = nvml.error().message;
    return {};
  }
  const auto known = query_nvml(*nvml, topology);
  TUTTI_TRY(known);
  const std::size_t count = topology.gpus.size();
  for (std::size_t from = 0; from < count; ++from) {
    if (!(*known)[from]) continue;
    topology.gpus[from].mig_enabled = (*known)[from]->mig_enabled;
    for (std::size_t to = 0; to < count; ++to) {
      GpuPath& path = topology.paths[from * count + to];
      if (path.same_gpu || !(*known)[to]) continue;
      const Result<NvLinks> links = links_of_pair(*nvml, *(*known)[from], *(*known)[to]);
      TUTTI_TRY(links);
      path.nvlinks = *links;
    }
  }
  return {};
}

}  // namespace

Result<GpuTopology> discover_gpus() {
  GpuTopology topology;
  const Result<const Driver*> driver = Driver::open();
  if (!driver) {
    topology.no_driver = driver.error().message;
    return topology;
  }
  topology.driver_version = (*driver)->version();
  const Result<int> count = (*driver)->device_count();
  TUTTI_TRY(count);
  for (int number = 0; number < *count; ++number) {
    Result<Gpu> gpu = query_driver(**driver, number);
    TUTTI_TRY(gpu);
    topology.gpus.push_back(*std::move(gpu));
  }
  for (int from = 0; from < *count; ++from) {
    for (int to = 0; to < *count; ++to) {
      if (from == to) {
        topology.paths.push_back({.same_gpu = true, .access = true, .atomics = true, .nvlinks = {}});
        continue;
      }
      Result<GpuPath> path = query_path(**driver, from, to);
      TUTTI_TRY(path);
      path->same_gpu =
          topology.gpus[static_cast<std::size_t>(from)].pci_id == topology.gpus[static_cast<std::size_t>(to)].pci_id;
      topology.paths.push_back(*path);
    }
  }
  TUTTI_TRY(add_nvlinks(topology));
  return topology;
}

std::optional<GpuPair> first_unreachable(const GpuTopology& topology) {
  for (std::size_t from = 0; from < topology.gpus.size(); ++from) {
    for (std::size_t to = 0; to < topology.gpus.size(); ++to) {
      if (!topology.path(from, to).access) return GpuPair{from, to};
    }
  }
  return std::nullopt;
}

}  // namespace tutti
