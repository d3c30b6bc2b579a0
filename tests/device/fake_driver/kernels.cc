// The fake driver's functions for modules and kernels. Launches on a device run at the same time if the device has
// enough free blocks for them.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

// Whether a real driver would accept the image as device code: a fatbin (with or without its wrapper), a cubin (an ELF
// file), or PTX. An image that begins with "fake" is accepted too; it replaces the device code in builds without nvcc.
bool is_image(const void* image) {
  std::array<unsigned char, 4> head{};
  std::memcpy(head.data(), image, head.size());
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  constexpr std::uint32_t kFatbin = 0xBA55ED50;
  constexpr std::uint32_t kWrapper = 0x466243B1;
  constexpr std::uint32_t kElf = 0x464C457F;
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  return magic == kFatbin || magic == kWrapper || magic == kElf || text == ".ver" || text == "//\n/" || text == "fake";
}

// Waits until all work of the context that was submitted so far has ended. A real driver waits in several calls that do
// not say so (measured with driver 580).
CUresult wait_for_context(const Context& context, const char* what) {
  return has_implicit_waits() ? wait_for_device(context.device, &context, what) : CUresult::kSuccess;
}

CUresult module_load_data(CUmodule* out, const void* image) {
  if (out == nullptr || image == nullptr) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  auto module = std::make_shared<Module>();
  {
    const std::lock_guard lock(own.mutex);
    if (const CUresult result = current_context(module->context); result != CUresult::kSuccess) return result;
  }
  if (!is_image(image)) return CUresult::kInvalidImage;
  const CUresult waited = wait_for_context(*module->context, "cuModuleLoadData");
  if (waited != CUresult::kSuccess) return waited;
  const std::lock_guard lock(own.mutex);
  *out = as_handle<CUmodule>(own.modules.add(std::move(module)));
  return CUresult::kSuccess;
}

CUresult module_unload(CUmodule handle) {
  std::shared_ptr<Module> module;
  {
    const std::lock_guard lock(driver_state().mutex);
    module = driver_state().modules.find(handle);
    if (module == nullptr) return CUresult::kInvalidHandle;
    if (!module->context->alive) return CUresult::kContextIsDestroyed;
  }
  const CUresult waited = wait_for_context(*module->context, "cuModuleUnload");
  const std::lock_guard lock(driver_state().mutex);
  return driver_state().modules.erase(handle) ? waited : CUresult::kInvalidHandle;
}

CUresult module_get_function(CUfunction* out, CUmodule handle, const char* name) {
  if (out == nullptr || name == nullptr) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto module = own.modules.find(handle);
  if (module == nullptr) return CUresult::kInvalidHandle;
  const auto kernel = own.kernels.find(name);
  if (kernel == own.kernels.end()) return CUresult::kNotFound;
  for (const auto& [known, function] : own.functions.all()) {
    if (function->module.lock() == module && function->kernel.name == name) {
      *out = as_handle<CUfunction>(known);
      return CUresult::kSuccess;
    }
  }
  auto function = std::make_shared<Function>();
  function->context = module->context;
  function->module = module;
  function->kernel = kernel->second;
  *out = as_handle<CUfunction>(own.functions.add(std::move(function)));
  return CUresult::kSuccess;
}

CUresult find_function(CUfunction handle, std::shared_ptr<Function>& function) {
  function = driver_state().functions.find(handle);
  if (function == nullptr || function->module.expired()) return CUresult::kInvalidHandle;
  return function->context->alive ? CUresult::kSuccess : CUresult::kContextIsDestroyed;
}

CUresult func_get_attribute(int* value, FunctionAttribute attribute, CUfunction handle) {
  if (value == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(handle, function); result != CUresult::kSuccess) return result;
  switch (attribute) {
    case FunctionAttribute::kMaxThreadsPerBlock: *value = static_cast<int>(function->kernel.max_threads); break;
    case FunctionAttribute::kMaxDynamicSharedBytes: *value = function->dynamic_shared_bytes; break;
    case FunctionAttribute::kRegisters: *value = 32; break;
    case FunctionAttribute::kLocalBytes: *value = static_cast<int>(function->kernel.local_bytes); break;
    case FunctionAttribute::kBinaryVersion: *value = 90; break;
    default: *value = 0;
  }
  return CUresult::kSuccess;
}

CUresult func_set_attribute(CUfunction handle, FunctionAttribute attribute, int value) {
  constexpr int kMostSharedBytes = 227 * 1024;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(handle, function); result != CUresult::kSuccess) return result;
  if (attribute != FunctionAttribute::kMaxDynamicSharedBytes) return CUresult::kInvalidValue;
  if (value < 0 || value > kMostSharedBytes) return CUresult::kInvalidValue;
  function->dynamic_shared_bytes = value;
  return CUresult::kSuccess;
}

CUresult occupancy(int* blocks, CUfunction handle, int block_threads, std::size_t dynamic_shared_bytes) {
  if (blocks == nullptr || block_threads <= 0) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(handle, function); result != CUresult::kSuccess) return result;
  const bool fits = static_cast<unsigned>(block_threads) <= function->kernel.max_threads &&
                    dynamic_shared_bytes <= static_cast<std::size_t>(function->dynamic_shared_bytes);
  *blocks = fits ? static_cast<int>(std::min(driver_state().blocks, 2U)) : 0;
  return CUresult::kSuccess;
}

// Waits until the device has enough free blocks for the launch and then runs it. The caller has limited `blocks` to the
// number that the device has, so a larger launch waits until the whole device is free.
CUresult run_launch(BlockSlots& block_slots, unsigned blocks, const FakeKernel& kernel, const FakeLaunch& launch) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(block_slots.mutex);
    number = block_slots.next++;
    block_slots.waiting.push_back(number);
  }
  const bool entered = wait_until(
      [&] {
        const std::lock_guard lock(block_slots.mutex);
        if (block_slots.waiting.front() != number || block_slots.free_blocks < blocks) return false;
        block_slots.waiting.pop_front();
        block_slots.free_blocks -= blocks;
        return true;
      },
      "a kernel that waits for free blocks on its device");
  if (!entered) {
    const std::lock_guard lock(block_slots.mutex);
    std::erase(block_slots.waiting, number);
    return CUresult::kLaunchTimeout;
  }
  const CUresult result = kernel.run(launch);
  const std::lock_guard lock(block_slots.mutex);
  block_slots.free_blocks += blocks;
  return result;
}

// Copies of the arguments of a launch. Copies are needed because the caller of cuLaunchKernel may change or free its
// arguments before the kernel runs.
struct Arguments {
  std::vector<std::vector<std::uint64_t>> copies;
  std::vector<void*> pointers;

  Arguments(const FakeKernel& kernel, void** parameters) {
    for (std::size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
      copies.emplace_back((kernel.argument_bytes[i] + 7) / 8);
      std::memcpy(copies.back().data(), parameters[i], kernel.argument_bytes[i]);
    }
    for (auto& bytes : copies) pointers.push_back(bytes.data());
  }
};

// Waits for all work of the context if the kernel needs more local memory than the kernels that were launched before,
// because the driver then enlarges the memory that all kernels of the context use. Handles that are not valid are left
// to launch_kernel().
CUresult provide_local_memory(CUfunction function_handle, CUstream stream_handle) {
  std::shared_ptr<Function> function;
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(driver_state().mutex);
    if (find_function(function_handle, function) != CUresult::kSuccess) return CUresult::kSuccess;
    if (find_stream(stream_handle, stream) != CUresult::kSuccess) return CUresult::kSuccess;
    const Context& context = *stream->context;
    const bool enough = function->kernel.local_bytes <= context.local_bytes;
    if (stream->capture != nullptr || !context.launched || enough) return CUresult::kSuccess;
  }
  const CUresult waited = wait_for_context(*stream->context, "cuLaunchKernel, for more local memory,");
  if (waited != CUresult::kSuccess) return waited;
  const std::lock_guard lock(driver_state().mutex);
  stream->context->local_bytes = std::max(stream->context->local_bytes, function->kernel.local_bytes);
  return CUresult::kSuccess;
}

// Notes a launch that is not captured. The first one in a context sets up the context.
void note_launch(Context& context, const FakeKernel& kernel) {
  if (context.launched) return;
  context.launched = true;
  context.local_bytes = kernel.local_bytes;
  if (has_implicit_waits()) set_up_launches(context);
}

CUresult launch_kernel(CUfunction function_handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream_handle,
                       void** parameters, void** extra) {
  const CUresult provided = provide_local_memory(function_handle, stream_handle);
  if (provided != CUresult::kSuccess) return provided;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(function_handle, function); result != CUresult::kSuccess) return result;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(stream_handle, stream); result != CUresult::kSuccess) return result;
  if (function->context != stream->context) return CUresult::kInvalidHandle;
  const std::uint64_t grid = std::uint64_t{grid_x} * grid_y * grid_z;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (grid == 0 || threads == 0 || threads > function->kernel.max_threads) return CUresult::kInvalidValue;
  if (shared_bytes > static_cast<unsigned>(function->dynamic_shared_bytes)) return CUresult::kInvalidValue;
  if (extra != nullptr) return CUresult::kNotSupported;  // a real driver would accept arguments as one buffer
  if (parameters == nullptr && !function->kernel.argument_bytes.empty()) return CUresult::kInvalidValue;
  const auto arguments = std::make_shared<Arguments>(function->kernel, parameters);
  const auto block_slots = driver_state().devices[static_cast<std::size_t>(stream->context->device)].block_slots;
  const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(grid, driver_state().blocks));
  FakeLaunch launch{
      stream->context->device, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr, blocks};
  const auto run = [launch, arguments, function, block_slots, blocks]() mutable {
    launch.arguments = arguments->pointers.data();
    return run_launch(*block_slots, blocks, function->kernel, launch);
  };
  if (stream->capture == nullptr) note_launch(*stream->context, function->kernel);
  return submit(stream, {"cuLaunchKernel", run, {}});
}

// A cooperative launch needs all of its blocks resident at once, so it fails if the device has fewer.
CUresult launch_cooperative(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                            void** parameters) {
  if (std::uint64_t{grid_x} * grid_y * grid_z > driver_state().blocks) return CUresult::kCooperativeLaunchTooLarge;
  return launch_kernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                       nullptr);
}

}  // namespace

void bind_kernels(DriverApi& api) {
  bind<&module_load_data>(api.module_load_data);
  bind<&module_unload>(api.module_unload);
  bind<&module_get_function>(api.module_get_function);
  bind<&func_get_attribute>(api.func_get_attribute);
  bind<&func_set_attribute>(api.func_set_attribute);
  bind<&occupancy>(api.occupancy_max_active_blocks);
  bind<&launch_kernel>(api.launch_kernel);
  bind<&launch_cooperative>(api.launch_cooperative_kernel);
}

}  // namespace tutti::cuda::fake
