// A fake NVML library, libnvidia-ml.so.1, for the devices of the fake driver (FAKE_CUDA_DEVICES).
//
// Every device has four NVLinks. Links 0 and 1 lead to the next device in a ring, link 2 is down, and link 3 leads to a
// switch. MIG is enabled on the last device. If FAKE_NVML_INIT is set, nvmlInit_v2 fails with that number. With
// FAKE_NVML_NVLINK=0, no two devices reach each other by NVLink. Nothing changes at run time, so any thread may call
// the functions.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;

struct PciInfo {
  char legacy_id[16];
  std::uint32_t domain;
  std::uint32_t bus;
  std::uint32_t device;
  std::uint32_t device_id;
  std::uint32_t subsystem_id;
  char id[32];
};
static_assert(sizeof(PciInfo) == 68);

std::uint32_t number(const char* name, std::uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

std::uint32_t count() { return number("FAKE_CUDA_DEVICES", 2); }

// The handle of a device is its index plus one, because a handle must not be null.
std::uint32_t index_of(const void* device) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(device)) - 1;
}

int put_pci(std::uint32_t index, PciInfo* info) {
  *info = {};
  info->bus = 0x10 + index;
  std::snprintf(info->id, sizeof(info->id), "00000000:%02X:00.0", info->bus);
  return kSuccess;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() { return static_cast<int>(number("FAKE_NVML_INIT", 0)); }
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int) { return "a pretend error"; }

int nvmlDeviceGetCount_v2(std::uint32_t* devices) {
  *devices = count();
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(std::uint32_t index, void** device) {
  if (index >= count()) return kInvalidArgument;
  *device = std::bit_cast<void*>(std::uintptr_t{index} + 1);
  return kSuccess;
}

int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) { return put_pci(index_of(device), info); }

int nvmlDeviceGetUUID(void* device, char* uuid, std::uint32_t bytes) {
  std::snprintf(uuid, bytes, "GPU-fa000000-0000-0000-0000-%012x", index_of(device));
  return kSuccess;
}

int nvmlDeviceGetName(void*, char* name, std::uint32_t bytes) {
  std::snprintf(name, bytes, "Pretend GPU");
  return kSuccess;
}

int nvmlDeviceGetNvLinkState(void*, std::uint32_t link, std::int32_t* active) {
  constexpr std::uint32_t kLinks = 4;
  if (link >= kLinks) return kInvalidArgument;
  *active = link == 2 ? 0 : 1;  // link 2 is down
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, std::uint32_t link, PciInfo* info) {
  return put_pci(link == 3 ? 0x40 : (index_of(device) + 1) % count(), info);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, std::uint32_t link, std::int32_t* type) {
  constexpr std::int32_t kGpu = 0;
  constexpr std::int32_t kSwitch = 2;
  *type = link == 3 ? kSwitch : kGpu;
  return kSuccess;
}

int nvmlDeviceGetNvLinkVersion(void*, std::uint32_t link, std::uint32_t* version) {
  *version = link == 0 ? 7 : 6;  // NVLink 5.0 and NVLink 4.0
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(void*, void*, std::int32_t capability, std::int32_t* status) {
  constexpr std::int32_t kNvLink = 2;
  constexpr std::int32_t kAtomics = 3;
  constexpr std::int32_t kOtherwise = 5;
  const bool missing = capability == kAtomics || (capability == kNvLink && number("FAKE_NVML_NVLINK", 1) == 0);
  *status = missing ? kOtherwise : 0;
  return kSuccess;
}

int nvmlDeviceGetMigMode(void* device, std::uint32_t* current, std::uint32_t* pending) {
  *current = index_of(device) + 1 == count() ? 1 : 0;
  *pending = *current;
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
