// The prototypes of the NVML functions that are used are declared here, so that NVML's header is not needed. They stay
// valid with later versions of NVML, because its ABI keeps old functions under their versioned names (..._v2).
#include "cuda/nvml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/shared_library.h"

namespace tutti::cuda {

namespace {

using NvmlReturn = std::int32_t;
using NvmlDevice = struct nvmlDevice_st*;

constexpr NvmlReturn kSuccess = 0;
constexpr NvmlReturn kInvalidArgument = 2;  // for example, the GPU has no NVLink with this number
constexpr NvmlReturn kNotSupported = 3;
constexpr std::int32_t kRemoteGpu = 0;
constexpr std::int32_t kRemoteSwitch = 2;

// NVLink versions in tenths, indexed by nvmlNvlinkVersion_t, which numbers the versions consecutively.
constexpr std::array<std::uint32_t, 9> kLinkVersionTenths = {0, 10, 20, 22, 30, 31, 40, 50, 60};

enum class PeerCapability : std::int32_t { kRead = 0, kWrite = 1, kNvLink = 2, kAtomics = 3 };

struct NvmlPciInfo {  // nvmlPciInfo_t as nvmlDeviceGetPciInfo_v3 fills it
  std::array<char, 16> legacy_id{};
  std::uint32_t domain = 0;
  std::uint32_t bus = 0;
  std::uint32_t device = 0;
  std::uint32_t device_id = 0;
  std::uint32_t subsystem_id = 0;
  std::array<char, 32> id{};
};
static_assert(sizeof(NvmlPciInfo) == 68);

}  // namespace

// The functions of the library. Those that find_all() looks up with find_optional() may be missing in old versions of
// NVML, so they are compared with null before each call.
struct NvmlApi {
  NvmlReturn (*init)() = nullptr;
  NvmlReturn (*shutdown)() = nullptr;
  const char* (*error_string)(NvmlReturn) = nullptr;
  NvmlReturn (*device_count)(std::uint32_t*) = nullptr;
  NvmlReturn (*device_by_index)(std::uint32_t, NvmlDevice*) = nullptr;
  NvmlReturn (*pci_info)(NvmlDevice, NvmlPciInfo*) = nullptr;
  NvmlReturn (*uuid)(NvmlDevice, char*, std::uint32_t) = nullptr;
  NvmlReturn (*name)(NvmlDevice, char*, std::uint32_t) = nullptr;
  NvmlReturn (*link_state)(NvmlDevice, std::uint32_t link, std::int32_t* active) = nullptr;
  NvmlReturn (*link_pci_info)(NvmlDevice, std::uint32_t link, NvmlPciInfo*) = nullptr;
  NvmlReturn (*link_remote_type)(NvmlDevice, std::uint32_t link, std::int32_t* type) = nullptr;
  NvmlReturn (*link_version)(NvmlDevice, std::uint32_t link, std::uint32_t* version) = nullptr;
  NvmlReturn (*p2p_status)(NvmlDevice, NvmlDevice, PeerCapability, std::int32_t* status) = nullptr;
  NvmlReturn (*mig_mode)(NvmlDevice, std::uint32_t* current, std::uint32_t* pending) = nullptr;
  bool initialised = false;

  NvmlApi() = default;
  NvmlApi(const NvmlApi&) = delete;
  NvmlApi& operator=(const NvmlApi&) = delete;
  ~NvmlApi() {
    if (initialised) shutdown();
  }
};

namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

Error unsupported(std::string message) { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, std::move(message)}; }

Status check(const NvmlApi& api, NvmlReturn result, std::string_view call) {
  if (result == kSuccess) return {};
  return Error{result == kNotSupported ? ErrorCode::kUnsupported : ErrorCode::kSystem, ErrorScope::kCall, -1,
               fmt::format("{} fails: {} ({})", call, api.error_string(result), result)};
}

void find_all(SharedLibrary& library, NvmlApi& api) {
  library.find(api.init, "nvmlInit_v2");
  library.find(api.shutdown, "nvmlShutdown");
  library.find(api.error_string, "nvmlErrorString");
  library.find(api.device_count, "nvmlDeviceGetCount_v2");
  library.find(api.device_by_index, "nvmlDeviceGetHandleByIndex_v2");
  library.find(api.pci_info, "nvmlDeviceGetPciInfo_v3");
  library.find(api.uuid, "nvmlDeviceGetUUID");
  library.find(api.name, "nvmlDeviceGetName");
  library.find_optional(api.link_state, "nvmlDeviceGetNvLinkState");
  library.find_optional(api.link_pci_info, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  library.find_optional(api.link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
  library.find_optional(api.link_version, "nvmlDeviceGetNvLinkVersion");
  library.find_optional(api.p2p_status, "nvmlDeviceGetP2PStatus");
  library.find_optional(api.mig_mode, "nvmlDeviceGetMigMode");
}

// Formats the PCI id as sysfs does: the domain has four digits, in lower case. (NVML's own text has eight digits, in
// upper case.)
std::string pci_id(const NvmlPciInfo& info) {
  const std::string_view text(info.id.data(), std::find(info.id.begin(), info.id.end(), '\0') - info.id.begin());
  const std::string_view function = text.rfind('.') == std::string_view::npos ? ".0" : text.substr(text.rfind('.'));
  return fmt::format("{:04x}:{:02x}:{:02x}{}", info.domain, info.bus, info.device, function);
}

Result<NvmlDevice> device_at(const NvmlApi& api, std::uint32_t index) {
  NvmlDevice device = nullptr;
  TUTTI_TRY(check(api, api.device_by_index(index, &device), fmt::format("nvmlDeviceGetHandleByIndex_v2 of {}", index)));
  return device;
}

std::uint32_t link_version_tenths(const NvmlApi& api, NvmlDevice device, std::uint32_t link) {
  std::uint32_t version = 0;
  if (api.link_version == nullptr || api.link_version(device, link, &version) != kSuccess) return 0;
  return version < kLinkVersionTenths.size() ? kLinkVersionTenths[version] : 0;
}

std::vector<NvLink> links_of(const NvmlApi& api, NvmlDevice device) {
  std::vector<NvLink> links;
  if (api.link_state == nullptr || api.link_pci_info == nullptr) return links;
  for (std::uint32_t link = 0; link < kMaxNvLinks; ++link) {
    std::int32_t active = 0;
    const NvmlReturn state = api.link_state(device, link, &active);
    if (state == kNotSupported || state == kInvalidArgument) break;  // the GPU has no NVLink, or no further link
    NvmlPciInfo remote;
    if (state != kSuccess || active == 0 || api.link_pci_info(device, link, &remote) != kSuccess) continue;
    NvLink found{link, NvLink::Remote::kOther, pci_id(remote), link_version_tenths(api, device, link)};
    std::int32_t type = -1;
    if (api.link_remote_type != nullptr) api.link_remote_type(device, link, &type);
    if (type == kRemoteGpu) found.remote = NvLink::Remote::kGpu;
    if (type == kRemoteSwitch) found.remote = NvLink::Remote::kSwitch;
    links.push_back(std::move(found));
  }
  return links;
}

}  // namespace

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid.bytes[i]);
  }
  return text;
}

bool are_joined_by_nvlink(std::span<const CUuuid> gpus) {
  const auto nvml = Nvml::open();
  if (!nvml) return false;
  const auto count = nvml->gpu_count();
  if (!count) return false;
  std::vector<std::uint32_t> indices;
  for (std::uint32_t index = 0; index < *count; ++index) {
    const auto gpu = nvml->gpu(index);
    const auto has_uuid = [&](const CUuuid& uuid) { return uuid_text(uuid) == gpu->uuid; };
    if (gpu && std::ranges::any_of(gpus, has_uuid)) indices.push_back(index);
  }
  std::set<std::string> different;
  for (const CUuuid& uuid : gpus) different.insert(uuid_text(uuid));
  if (indices.size() != different.size()) return false;
  for (const std::uint32_t from : indices) {
    for (const std::uint32_t to : indices) {
      if (from == to) continue;
      const auto reach = nvml->reach(from, to);
      if (!reach || !reach->nvlink) return false;
    }
  }
  return true;
}

Result<Nvml> Nvml::open() {
  auto library = SharedLibrary::open(kLibrary);
  if (!library) {
    return unsupported(fmt::format("no NVML: {}; it comes with NVIDIA's driver; without it nothing is known of NVLink",
                                   library.error().message));
  }
  auto api = std::make_unique<NvmlApi>();
  find_all(*library, *api);
  if (library->missing() != nullptr) {
    return unsupported(fmt::format("{} is too old: update NVIDIA's driver", kLibrary));
  }
  if (const NvmlReturn result = api->init(); result != kSuccess) {
    return unsupported(
        fmt::format("nvmlInit_v2 fails: {} ({}); is NVIDIA's driver running?", api->error_string(result), result));
  }
  api->initialised = true;
  return Nvml(std::move(api));
}

Nvml::Nvml(std::unique_ptr<NvmlApi> api) : api_(std::move(api)) {}
Nvml::Nvml(Nvml&&) noexcept = default;
Nvml& Nvml::operator=(Nvml&&) noexcept = default;
Nvml::~Nvml() = default;

Result<std::uint32_t> Nvml::gpu_count() const {
  std::uint32_t count = 0;
  TUTTI_TRY(check(*api_, api_->device_count(&count), "nvmlDeviceGetCount_v2"));
  return count;
}

Result<GpuInfo> Nvml::gpu(std::uint32_t index) const {
  const auto device = device_at(*api_, index);
  TUTTI_TRY(device);
  GpuInfo info;
  info.index = index;
  std::array<char, 96> text{};  // the size that NVML specifies for names and UUIDs
  TUTTI_TRY(check(*api_, api_->name(*device, text.data(), text.size()), "nvmlDeviceGetName"));
  info.name = text.data();
  TUTTI_TRY(check(*api_, api_->uuid(*device, text.data(), text.size()), "nvmlDeviceGetUUID"));
  info.uuid = text.data();
  NvmlPciInfo pci;
  TUTTI_TRY(check(*api_, api_->pci_info(*device, &pci), "nvmlDeviceGetPciInfo_v3"));
  info.pci_id = pci_id(pci);
  std::uint32_t current = 0;
  std::uint32_t pending = 0;
  if (api_->mig_mode != nullptr && api_->mig_mode(*device, &current, &pending) == kSuccess) {
    info.mig_enabled = current != 0;
  }
  info.links = links_of(*api_, *device);
  return info;
}

Result<PeerAccess> Nvml::reach(std::uint32_t from, std::uint32_t to) const {
  TUTTI_ASSERT(from != to);
  if (api_->p2p_status == nullptr) return unsupported("this NVML does not tell what GPUs reach: update the driver");
  const auto source = device_at(*api_, from);
  TUTTI_TRY(source);
  const auto target = device_at(*api_, to);
  TUTTI_TRY(target);
  PeerAccess reach;
  const std::array<std::pair<PeerCapability, bool*>, 4> questions = {{{PeerCapability::kRead, &reach.read},
                                                                      {PeerCapability::kWrite, &reach.write},
                                                                      {PeerCapability::kNvLink, &reach.nvlink},
                                                                      {PeerCapability::kAtomics, &reach.atomics}}};
  for (const auto& [capability, answer] : questions) {
    std::int32_t status = -1;
    const NvmlReturn result = api_->p2p_status(*source, *target, capability, &status);
    if (result == kNotSupported) continue;
    TUTTI_TRY(check(*api_, result, "nvmlDeviceGetP2PStatus"));
    *answer = status == 0;
  }
  return reach;
}

}  // namespace tutti::cuda
