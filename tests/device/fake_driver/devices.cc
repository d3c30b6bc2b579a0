// The fake driver's functions for devices and contexts, and for versions and error texts.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

// Limits of the fake devices. The numbers of threads and of shared memory are those of an H100 (compute capability
// 9.0).
constexpr unsigned kBlocksPerMultiprocessor = 2;
constexpr int kMaxThreadsPerBlock = 1024;
constexpr int kMaxSharedBytes = 227 * 1024;

std::vector<std::uintptr_t>& context_stack() {
  static thread_local std::vector<std::uintptr_t> stack;
  return stack;
}

CUresult check_context(CUcontext handle) {
  const auto context = driver_state().contexts.find(handle);
  if (context == nullptr) return CUresult::kInvalidContext;
  return context->alive ? CUresult::kSuccess : CUresult::kContextIsDestroyed;
}

CUresult init(unsigned flags) {
  DriverState& own = driver_state();
  if (flags != 0) return CUresult::kInvalidValue;
  if (own.deinitialized) return CUresult::kDeinitialized;
  if (const std::uint64_t failure = setting("FAKE_CUDA_INIT", 0); failure != 0) return static_cast<CUresult>(failure);
  if (own.devices.empty()) return CUresult::kNoDevice;
  pid_t none = 0;
  if (!own.process.compare_exchange_strong(none, getpid()) && none != getpid()) return CUresult::kNotInitialized;
  return CUresult::kSuccess;
}

CUresult driver_get_version(int* version) {
  if (version == nullptr) return CUresult::kInvalidValue;
  *version = driver_state().version;
  return CUresult::kSuccess;
}

struct ErrorText {
  CUresult result;
  const char* name;
  const char* text;
};

const ErrorText* find_error(CUresult result) {
  static const auto kTexts = std::to_array<ErrorText>({
      {CUresult::kSuccess, "CUDA_SUCCESS", "no error"},
      {CUresult::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
      {CUresult::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
      {CUresult::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "not initialized"},
      {CUresult::kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "shutting down"},
      {CUresult::kStubLibrary, "CUDA_ERROR_STUB_LIBRARY", "stub library"},
      {CUresult::kNoDevice, "CUDA_ERROR_NO_DEVICE", "no device"},
      {CUresult::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device"},
      {CUresult::kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "invalid kernel image"},
      {CUresult::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid context"},
      {CUresult::kMapFailed, "CUDA_ERROR_MAP_FAILED", "mapping failed"},
      {CUresult::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid handle"},
      {CUresult::kNotFound, "CUDA_ERROR_NOT_FOUND", "symbol not found"},
      {CUresult::kNotReady, "CUDA_ERROR_NOT_READY", "not ready"},
      {CUresult::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"},
      {CUresult::kLaunchTimeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "launch timed out"},
      {CUresult::kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access unsupported"},
      {CUresult::kPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access already enabled"},
      {CUresult::kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
      {CUresult::kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already registered"},
      {CUresult::kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not registered"},
      {CUresult::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "launch failed"},
      {CUresult::kCooperativeLaunchTooLarge, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks"},
      {CUresult::kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "not permitted"},
      {CUresult::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "not supported"},
      {CUresult::kStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not while capturing"},
      {CUresult::kStreamCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "capture invalidated"},
      {CUresult::kStreamCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "depends on the legacy stream"},
      {CUresult::kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
  });
  const auto found =
      std::find_if(kTexts.begin(), kTexts.end(), [&](const auto& text) { return text.result == result; });
  return found == kTexts.end() ? nullptr : &*found;
}

CUresult get_error_name(CUresult result, const char** name) {
  const ErrorText* found = find_error(result);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUresult::kInvalidValue : CUresult::kSuccess;
}

CUresult get_error_string(CUresult result, const char** text) {
  const ErrorText* found = find_error(result);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUresult::kInvalidValue : CUresult::kSuccess;
}

CUresult device_get(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUresult::kInvalidValue;
  if (!driver_state().has_device(ordinal)) return CUresult::kInvalidDevice;
  *device = ordinal;
  return CUresult::kSuccess;
}

CUresult device_get_count(int* count) {
  if (count == nullptr) return CUresult::kInvalidValue;
  *count = static_cast<int>(driver_state().devices.size());
  return CUresult::kSuccess;
}

CUresult copy_text(const std::string& text, char* out, int bytes) {
  if (out == nullptr || bytes <= 0) return CUresult::kInvalidValue;
  std::snprintf(out, static_cast<std::size_t>(bytes), "%s", text.c_str());
  return CUresult::kSuccess;
}

CUresult device_get_name(char* name, int bytes, CUdevice device) {
  if (!driver_state().has_device(device)) return CUresult::kInvalidDevice;
  return copy_text("Pretend GPU", name, bytes);
}

int attribute_of(DeviceAttribute attribute, CUdevice device) {
  switch (attribute) {
    case DeviceAttribute::kMaxThreadsPerBlock: return kMaxThreadsPerBlock;
    case DeviceAttribute::kMaxSharedMemoryPerBlock: return 48 * 1024;
    case DeviceAttribute::kMaxSharedMemoryPerBlockOptin:
    case DeviceAttribute::kMaxSharedMemoryPerMultiprocessor: return kMaxSharedBytes;
    case DeviceAttribute::kWarpSize: return 32;
    case DeviceAttribute::kMultiprocessorCount:
      return static_cast<int>(std::max(1U, driver_state().blocks / kBlocksPerMultiprocessor));
    case DeviceAttribute::kMaxBlocksPerMultiprocessor: return kBlocksPerMultiprocessor;
    case DeviceAttribute::kMaxThreadsPerMultiprocessor:
      return kMaxThreadsPerBlock * static_cast<int>(kBlocksPerMultiprocessor);
    case DeviceAttribute::kPciBusId: return 0x10 + device;
    case DeviceAttribute::kComputeCapabilityMajor: return 9;
    case DeviceAttribute::kIntegrated:
    case DeviceAttribute::kPciDeviceId:
    case DeviceAttribute::kPciDomainId:
    case DeviceAttribute::kComputeCapabilityMinor:
    case DeviceAttribute::kGpuDirectRdmaSupported:
    case DeviceAttribute::kDmaBufSupported:
    case DeviceAttribute::kMulticastSupported: return 0;
    case DeviceAttribute::kAsyncEngineCount: return 2;
    case DeviceAttribute::kVirtualMemoryManagementSupported:
    case DeviceAttribute::kPosixFdHandleSupported: return setting("FAKE_CUDA_VMM", 1) != 0 ? 1 : 0;
    default: return 1;  // the other attributes are capabilities, and the fake device has them
  }
}

CUresult device_get_attribute(int* value, DeviceAttribute attribute, CUdevice device) {
  if (value == nullptr) return CUresult::kInvalidValue;
  if (!driver_state().has_device(device)) return CUresult::kInvalidDevice;
  *value = attribute_of(attribute, device);
  return CUresult::kSuccess;
}

CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
  if (uuid == nullptr) return CUresult::kInvalidValue;
  if (!driver_state().has_device(device)) return CUresult::kInvalidDevice;
  *uuid = {};
  uuid->bytes[0] = 0xFA;
  uuid->bytes[15] = static_cast<std::uint8_t>(device);
  return CUresult::kSuccess;
}

CUresult device_get_pci_bus_id(char* id, int bytes, CUdevice device) {
  if (!driver_state().has_device(device)) return CUresult::kInvalidDevice;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "0000:%02X:00.0", 0x10 + static_cast<unsigned>(device));
  return copy_text(text.data(), id, bytes);
}

CUresult device_total_mem(std::size_t* bytes, CUdevice device) {
  if (bytes == nullptr) return CUresult::kInvalidValue;
  if (!driver_state().has_device(device)) return CUresult::kInvalidDevice;
  const std::lock_guard lock(driver_state().mutex);
  *bytes = driver_state().devices[static_cast<std::size_t>(device)].limit_bytes;
  return CUresult::kSuccess;
}

CUresult device_can_access_peer(int* can, CUdevice device, CUdevice peer) {
  if (can == nullptr) return CUresult::kInvalidValue;
  if (!driver_state().has_device(device) || !driver_state().has_device(peer)) return CUresult::kInvalidDevice;
  const std::lock_guard lock(driver_state().mutex);
  *can = device != peer && driver_state().reaches(device, peer) ? 1 : 0;
  return CUresult::kSuccess;
}

CUresult device_get_p2p_attribute(int* value, P2pAttribute attribute, CUdevice source, CUdevice target) {
  if (source == target) return CUresult::kInvalidDevice;
  int can = 0;
  if (const CUresult result = device_can_access_peer(&can, source, target); result != CUresult::kSuccess) return result;
  if (value == nullptr) return CUresult::kInvalidValue;
  *value = attribute == P2pAttribute::kPerformanceRank ? 0 : can;
  return CUresult::kSuccess;
}

CUresult primary_retain(CUcontext* context, CUdevice device) {
  DriverState& own = driver_state();
  if (context == nullptr) return CUresult::kInvalidValue;
  if (!own.has_device(device)) return CUresult::kInvalidDevice;
  const std::lock_guard lock(own.mutex);
  Device& its = own.devices[static_cast<std::size_t>(device)];
  if (its.primary == nullptr) {
    its.primary = make_context(device);
    its.primary->primary = true;
  }
  ++its.retained;
  *context = as_handle<CUcontext>(own.contexts.handle_of(its.primary.get()));
  return CUresult::kSuccess;
}

CUresult primary_release(CUdevice device) {
  DriverState& own = driver_state();
  if (!own.has_device(device)) return CUresult::kInvalidDevice;
  std::shared_ptr<Context> ending;
  {
    const std::lock_guard lock(own.mutex);
    Device& its = own.devices[static_cast<std::size_t>(device)];
    if (its.retained == 0) return CUresult::kInvalidContext;
    if (--its.retained > 0) return CUresult::kSuccess;
    ending = std::move(its.primary);
  }
  // The last release destroys the context. Objects that still exist in it are leaks of the program.
  wait_for_device(device, ending.get(), "cuDevicePrimaryCtxRelease");
  const std::lock_guard lock(own.mutex);
  own.leaked_with_context += describe_unreleased(ending.get());
  end_context(ending);
  return CUresult::kSuccess;
}

CUresult primary_get_state(CUdevice device, unsigned* flags, int* active) {
  if (flags == nullptr || active == nullptr) return CUresult::kInvalidValue;
  if (!driver_state().has_device(device)) return CUresult::kInvalidDevice;
  const std::lock_guard lock(driver_state().mutex);
  *flags = 0;
  *active = driver_state().devices[static_cast<std::size_t>(device)].retained > 0 ? 1 : 0;
  return CUresult::kSuccess;
}

CUresult ctx_get_current(CUcontext* context) {
  if (context == nullptr) return CUresult::kInvalidValue;
  *context = context_stack().empty() ? nullptr : as_handle<CUcontext>(context_stack().back());
  return CUresult::kSuccess;
}

CUresult ctx_set_current(CUcontext context) {
  auto& stack = context_stack();
  if (context != nullptr) {
    const std::lock_guard lock(driver_state().mutex);
    if (const CUresult result = check_context(context); result != CUresult::kSuccess) return result;
  }
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(reinterpret_cast<std::uintptr_t>(context));
  return CUresult::kSuccess;
}

CUresult ctx_push_current(CUcontext context) {
  const std::lock_guard lock(driver_state().mutex);
  if (const CUresult result = check_context(context); result != CUresult::kSuccess) return result;
  context_stack().push_back(reinterpret_cast<std::uintptr_t>(context));
  return CUresult::kSuccess;
}

CUresult ctx_pop_current(CUcontext* context) {
  auto& stack = context_stack();
  if (stack.empty()) return CUresult::kInvalidContext;
  if (context != nullptr) *context = as_handle<CUcontext>(stack.back());
  stack.pop_back();
  return CUresult::kSuccess;
}

CUresult ctx_get_device(CUdevice* device) {
  if (device == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
  *device = context->device;
  return CUresult::kSuccess;
}

// Handles of contexts are not used again, so they are their ids.
CUresult ctx_get_id(CUcontext context, unsigned long long* id) {
  if (id == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  if (const CUresult result = check_context(context); result != CUresult::kSuccess) return result;
  *id = reinterpret_cast<std::uintptr_t>(context);
  return CUresult::kSuccess;
}

CUresult ctx_synchronize() {
  std::shared_ptr<Context> context;
  {
    const std::lock_guard lock(driver_state().mutex);
    if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
    if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  }
  return wait_for_device(context->device, context.get(), "cuCtxSynchronize");
}

CUresult ctx_get_stream_priority_range(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUresult::kSuccess;
}

CUresult ctx_enable_peer_access(CUcontext peer, unsigned flags) {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Context> context;
  if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
  if (const CUresult result = check_context(peer); result != CUresult::kSuccess) return result;
  if (flags != 0) return CUresult::kInvalidValue;
  const int device = own.contexts.find(peer)->device;
  if (device == context->device) return CUresult::kInvalidContext;
  if (!own.reaches(context->device, device)) return CUresult::kPeerAccessUnsupported;
  if (!context->peers.insert(device).second) return CUresult::kPeerAccessAlreadyEnabled;
  return CUresult::kSuccess;
}

}  // namespace

CUresult current_context(std::shared_ptr<Context>& context) {
  if (context_stack().empty()) return CUresult::kInvalidContext;
  context = driver_state().contexts.find(context_stack().back());
  return context->alive ? CUresult::kSuccess : CUresult::kContextIsDestroyed;
}

void bind_devices(DriverApi& api) {
  bind<&init>(api.init);
  bind<&driver_get_version>(api.driver_get_version);
  bind<&get_error_name>(api.get_error_name);
  bind<&get_error_string>(api.get_error_string);
  bind<&device_get>(api.device_get);
  bind<&device_get_count>(api.device_get_count);
  bind<&device_get_name>(api.device_get_name);
  bind<&device_get_attribute>(api.device_get_attribute);
  bind<&device_get_uuid>(api.device_get_uuid);
  bind<&device_get_pci_bus_id>(api.device_get_pci_bus_id);
  bind<&device_total_mem>(api.device_total_mem);
  bind<&device_can_access_peer>(api.device_can_access_peer);
  bind<&device_get_p2p_attribute>(api.device_get_p2p_attribute);
  bind<&primary_retain>(api.device_primary_ctx_retain);
  bind<&primary_release>(api.device_primary_ctx_release);
  bind<&primary_get_state>(api.device_primary_ctx_get_state);
  bind<&ctx_get_current>(api.ctx_get_current);
  bind<&ctx_set_current>(api.ctx_set_current);
  bind<&ctx_push_current>(api.ctx_push_current);
  bind<&ctx_pop_current>(api.ctx_pop_current);
  bind<&ctx_get_device>(api.ctx_get_device);
  bind<&ctx_get_id>(api.ctx_get_id);
  bind<&ctx_synchronize>(api.ctx_synchronize);
  bind<&ctx_get_stream_priority_range>(api.ctx_get_stream_priority_range);
  bind<&ctx_enable_peer_access>(api.ctx_enable_peer_access);
}

}  // namespace tutti::cuda::fake
