#include "cuda/resources.h"

#include <fmt/format.h>

#include "base/assert.h"

namespace tutti::cuda {
namespace {

// Whether a destructor has nothing to free, because the object was lost with its context, or because it belongs to the
// parent of this forked process.
bool is_gone(CUresult result) { return is_lost(result) || result == CUresult::kNotInitialized; }

Result<CUcontext> context_for(const Driver& driver, std::string_view call) {
  CUcontext context = nullptr;
  TUTTI_TRY(driver.check(detail::current_context(driver, context), "cuCtxGetCurrent"));
  if (context == nullptr) return driver.error(CUresult::kInvalidContext, call);
  return context;
}

}  // namespace

namespace detail {

CUresult current_context(const Driver& driver, CUcontext& context) { return driver.api().ctx_get_current(&context); }

void end_in_context(const Driver& driver, CUcontext context, std::string_view call,
                    CUresult (*end)(const DriverApi&, void*), void* argument) {
  const DriverApi& api = driver.api();
  const RelaxedCapture relaxed(driver);  // another thread may be capturing a graph
  CUresult result = api.ctx_push_current(context);
  if (result == CUresult::kSuccess) {
    result = end(api, argument);
    CUcontext popped = nullptr;
    api.ctx_pop_current(&popped);  // fails only if the driver has shut down, and then there is no context stack either
  }
  // For a context that was destroyed, the driver may return the same error as for an invalid one.
  if (result == CUresult::kSuccess || result == CUresult::kInvalidContext || is_gone(result)) return;
  TUTTI_ASSERT(false, "{}", to_string(driver.error(result, call)));
}

}  // namespace detail

Result<ContextScope> ContextScope::enter(const Driver& driver, CUcontext context) {
  TUTTI_TRY(driver.check(driver.api().ctx_push_current(context), "cuCtxPushCurrent"));
  return ContextScope(driver);
}

Result<ContextScope> ContextScope::enter_unless_current(const Driver& driver, CUcontext context) {
  CUcontext current = nullptr;
  const CUresult asked = driver.api().ctx_get_current(&current);
  if (asked == CUresult::kSuccess && current == context) return ContextScope();
  return enter(driver, context);
}

std::optional<ContextScope> ContextScope::try_enter(const Driver& driver, CUcontext context) noexcept {
  if (driver.api().ctx_push_current(context) != CUresult::kSuccess) return std::nullopt;
  return ContextScope(driver);
}

ContextScope::~ContextScope() {
  if (driver_ == nullptr) return;
  CUcontext popped = nullptr;
  const CUresult result = driver_->api().ctx_pop_current(&popped);
  TUTTI_ASSERT(result == CUresult::kSuccess || result == CUresult::kInvalidContext || is_gone(result), "{}",
               to_string(driver_->error(result, "cuCtxPopCurrent")));
}

Result<PrimaryContext> PrimaryContext::retain(const Driver& driver, int device) {
  CUdevice handle = 0;
  TUTTI_TRY(driver.check(driver.api().device_get(&handle, device), fmt::format("cuDeviceGet of device {}", device)));
  CUcontext context = nullptr;
  TUTTI_TRY(driver.check(driver.api().device_primary_ctx_retain(&context, handle),
                         fmt::format("cuDevicePrimaryCtxRetain of device {}", device)));
  return PrimaryContext(driver, context, handle);
}

PrimaryContext::PrimaryContext(PrimaryContext&& other) noexcept
    : driver_(other.driver_), context_(std::exchange(other.context_, nullptr)), device_(other.device_) {}

PrimaryContext& PrimaryContext::operator=(PrimaryContext&& other) noexcept {
  if (this != &other) {
    release();
    driver_ = other.driver_;
    context_ = std::exchange(other.context_, nullptr);
    device_ = other.device_;
  }
  return *this;
}

PrimaryContext::~PrimaryContext() { release(); }

void PrimaryContext::release() {
  if (std::exchange(context_, nullptr) == nullptr) return;
  const CUresult result = driver_->api().device_primary_ctx_release(device_);
  // The program may have reset the device (cudaDeviceReset). In this case the context does not exist any more.
  TUTTI_ASSERT(result == CUresult::kSuccess || result == CUresult::kInvalidContext || is_gone(result), "{}",
               to_string(driver_->error(result, "cuDevicePrimaryCtxRelease")));
}

Result<Stream> Stream::create(const Driver& driver, StreamOptions options) {
  auto context = context_for(driver, "cuStreamCreateWithPriority");
  TUTTI_TRY(context);
  CUstream stream = nullptr;
  TUTTI_TRY(driver.check(driver.api().stream_create_with_priority(&stream, options.flags, options.priority),
                         "cuStreamCreateWithPriority"));
  return Stream({driver, *context, stream});
}

Status Stream::synchronize() const {
  return owned_.driver().check(owned_.driver().api().stream_synchronize(handle()), "cuStreamSynchronize");
}

Result<bool> Stream::finished() const {
  const CUresult result = owned_.driver().api().stream_query(handle());
  if (result == CUresult::kNotReady) return false;
  TUTTI_TRY(owned_.driver().check(result, "cuStreamQuery"));
  return true;
}

Status Stream::wait(const Event& event) const {
  return owned_.driver().check(owned_.driver().api().stream_wait_event(handle(), event.handle(), 0),
                               "cuStreamWaitEvent");
}

Result<Event> Event::create(const Driver& driver, EventOptions options) {
  auto context = context_for(driver, "cuEventCreate");
  TUTTI_TRY(context);
  CUevent event = nullptr;
  TUTTI_TRY(driver.check(driver.api().event_create(&event, options.flags), "cuEventCreate"));
  return Event({driver, *context, event});
}

Status Event::record(CUstream stream) const {
  return owned_.driver().check(owned_.driver().api().event_record(handle(), stream), "cuEventRecord");
}

Result<bool> Event::finished() const {
  const CUresult result = owned_.driver().api().event_query(handle());
  if (result == CUresult::kNotReady) return false;
  TUTTI_TRY(owned_.driver().check(result, "cuEventQuery"));
  return true;
}

Status Event::synchronize() const {
  return owned_.driver().check(owned_.driver().api().event_synchronize(handle()), "cuEventSynchronize");
}

Result<double> elapsed_ms(const Driver& driver, const Event& start, const Event& end) {
  float milliseconds = 0;
  TUTTI_TRY(
      driver.check(driver.api().event_elapsed_time(&milliseconds, start.handle(), end.handle()), "cuEventElapsedTime"));
  return double{milliseconds};
}

Result<DeviceMemory> DeviceMemory::allocate(const Driver& driver, std::size_t bytes) {
  TUTTI_ASSERT(bytes > 0);
  auto context = context_for(driver, "cuMemAlloc");
  TUTTI_TRY(context);
  CUdeviceptr address = 0;
  TUTTI_TRY(driver.check(driver.api().mem_alloc(&address, bytes), fmt::format("cuMemAlloc of {} bytes", bytes)));
  return DeviceMemory({driver, *context, address}, bytes);
}

Result<CUipcMemHandle> DeviceMemory::share() const {
  CUipcMemHandle handle;
  TUTTI_TRY(owned_.driver().check(owned_.driver().api().ipc_get_mem_handle(&handle, address()), "cuIpcGetMemHandle"));
  return handle;
}

Result<PeerMemory> PeerMemory::open(const Driver& driver, const CUipcMemHandle& handle) {
  auto context = context_for(driver, "cuIpcOpenMemHandle");
  TUTTI_TRY(context);
  CUdeviceptr address = 0;
  TUTTI_TRY(driver.check(driver.api().ipc_open_mem_handle(&address, handle, kIpcLazyPeerAccess), "cuIpcOpenMemHandle"));
  return PeerMemory({driver, *context, address});
}

Result<PinnedMemory> PinnedMemory::allocate(const Driver& driver, std::size_t bytes) {
  TUTTI_ASSERT(bytes > 0);
  auto context = context_for(driver, "cuMemHostAlloc");
  TUTTI_TRY(context);
  const DriverApi& api = driver.api();
  void* memory = nullptr;
  TUTTI_TRY(driver.check(api.mem_host_alloc(&memory, bytes, kHostPortable | kHostDeviceMap),
                         fmt::format("cuMemHostAlloc of {} bytes", bytes)));
  detail::Owned<void*, &DriverApi::mem_free_host> owned(driver, *context, memory);
  CUdeviceptr address = 0;
  TUTTI_TRY(driver.check(api.mem_host_get_device_pointer(&address, memory, 0), "cuMemHostGetDevicePointer"));
  return PinnedMemory(std::move(owned), bytes, address);
}

Result<RegisteredMemory> RegisteredMemory::add(const Driver& driver, std::span<std::byte> memory) {
  TUTTI_ASSERT(!memory.empty());
  auto context = context_for(driver, "cuMemHostRegister");
  TUTTI_TRY(context);
  const DriverApi& api = driver.api();
  TUTTI_TRY(driver.check(api.mem_host_register(memory.data(), memory.size(), kHostPortable | kHostDeviceMap),
                         fmt::format("cuMemHostRegister of {} bytes", memory.size())));
  detail::Owned<void*, &DriverApi::mem_host_unregister> owned(driver, *context, memory.data());
  CUdeviceptr address = 0;
  TUTTI_TRY(driver.check(api.mem_host_get_device_pointer(&address, memory.data(), 0), "cuMemHostGetDevicePointer"));
  return RegisteredMemory(std::move(owned), address);
}

Result<Module> Module::load(const Driver& driver, const void* image) {
  auto context = context_for(driver, "cuModuleLoadData");
  TUTTI_TRY(context);
  CUmodule module = nullptr;
  TUTTI_TRY(driver.check(driver.api().module_load_data(&module, image), "cuModuleLoadData"));
  return Module({driver, *context, module});
}

Result<CUfunction> Module::function(const char* name) const {
  CUfunction function = nullptr;
  TUTTI_TRY(owned_.driver().check(owned_.driver().api().module_get_function(&function, owned_.handle(), name),
                                  fmt::format("cuModuleGetFunction of {}", name)));
  return function;
}

}  // namespace tutti::cuda
