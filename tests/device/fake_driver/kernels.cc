// Modules and kernels: what is loaded, and how launches run beside each other on a device.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "hooks.h"
#include "world.h"

namespace tutti::cuda::fake {
namespace {

// Images that a driver would take for device code: fatbins (with and without their wrapper), cubins, PTX. Text that
// begins with "fake" stands for the device code of a build that has none.
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

CUresult module_load_data(CUmodule* out, const void* image) {
  if (out == nullptr || image == nullptr) return CUresult::kInvalidValue;
  World& own = world();
  const std::lock_guard lock(own.mutex);
  auto module = std::make_shared<Module>();
  if (const CUresult result = current_context(module->context); result != CUresult::kSuccess) return result;
  if (!is_image(image)) return CUresult::kInvalidImage;
  *out = as_handle<CUmodule>(own.modules.add(std::move(module)));
  return CUresult::kSuccess;
}

CUresult module_unload(CUmodule handle) {
  const std::lock_guard lock(world().mutex);
  const auto module = world().modules.find(handle);
  if (module == nullptr) return CUresult::kInvalidHandle;
  if (!module->context->alive) return CUresult::kContextIsDestroyed;
  world().modules.erase(handle);
  return CUresult::kSuccess;
}

CUresult module_get_function(CUfunction* out, CUmodule handle, const char* name) {
  if (out == nullptr || name == nullptr) return CUresult::kInvalidValue;
  World& own = world();
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
  function = world().functions.find(handle);
  if (function == nullptr || function->module.expired()) return CUresult::kInvalidHandle;
  return function->context->alive ? CUresult::kSuccess : CUresult::kContextIsDestroyed;
}

CUresult func_get_attribute(int* value, FunctionAttribute attribute, CUfunction handle) {
  if (value == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(handle, function); result != CUresult::kSuccess) return result;
  switch (attribute) {
    case FunctionAttribute::kMaxThreadsPerBlock: *value = static_cast<int>(function->kernel.most_threads); break;
    case FunctionAttribute::kMaxDynamicSharedBytes: *value = function->dynamic_shared_bytes; break;
    case FunctionAttribute::kRegisters: *value = 32; break;
    case FunctionAttribute::kBinaryVersion: *value = 90; break;
    default: *value = 0;
  }
  return CUresult::kSuccess;
}

CUresult func_set_attribute(CUfunction handle, FunctionAttribute attribute, int value) {
  constexpr int kMostSharedBytes = 227 * 1024;
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(handle, function); result != CUresult::kSuccess) return result;
  if (attribute != FunctionAttribute::kMaxDynamicSharedBytes) return CUresult::kInvalidValue;
  if (value < 0 || value > kMostSharedBytes) return CUresult::kInvalidValue;
  function->dynamic_shared_bytes = value;
  return CUresult::kSuccess;
}

CUresult occupancy(int* blocks, CUfunction handle, int block_threads, std::size_t dynamic_shared_bytes) {
  if (blocks == nullptr || block_threads <= 0) return CUresult::kInvalidValue;
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(handle, function); result != CUresult::kSuccess) return result;
  const bool fits = static_cast<unsigned>(block_threads) <= function->kernel.most_threads &&
                    dynamic_shared_bytes <= static_cast<std::size_t>(function->dynamic_shared_bytes);
  *blocks = fits ? static_cast<int>(std::min(world().blocks, 2U)) : 0;
  return CUresult::kSuccess;
}

// Runs a launch when the device has room for its blocks; one of more blocks than the device has waits for all of it.
CUresult run_launch(Room& room, unsigned blocks, const FakeKernel& kernel, const FakeLaunch& launch) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(room.mutex);
    number = room.next++;
    room.waiting.push_back(number);
  }
  const bool entered = wait_until(
      [&] {
        const std::lock_guard lock(room.mutex);
        if (room.waiting.front() != number || room.free_blocks < blocks) return false;
        room.waiting.pop_front();
        room.free_blocks -= blocks;
        return true;
      },
      "a kernel that finds no room on its device");
  if (!entered) {
    const std::lock_guard lock(room.mutex);
    std::erase(room.waiting, number);
    return CUresult::kLaunchTimeout;
  }
  const CUresult result = kernel.run(launch);
  const std::lock_guard lock(room.mutex);
  room.free_blocks += blocks;
  return result;
}

// A launch's arguments, copied: what cuLaunchKernel was given may be gone when it runs.
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

CUresult launch_kernel(CUfunction function_handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream_handle,
                       void** parameters, void** extra) {
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
  std::shared_ptr<Function> function;
  if (const CUresult result = find_function(function_handle, function); result != CUresult::kSuccess) return result;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(stream_handle, stream); result != CUresult::kSuccess) return result;
  if (function->context != stream->context) return CUresult::kInvalidHandle;
  const std::uint64_t grid = std::uint64_t{grid_x} * grid_y * grid_z;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (grid == 0 || threads == 0 || threads > function->kernel.most_threads) return CUresult::kInvalidValue;
  if (shared_bytes > static_cast<unsigned>(function->dynamic_shared_bytes)) return CUresult::kInvalidValue;
  if (extra != nullptr) return CUresult::kNotSupported;  // arguments as one buffer: a real driver would take them
  if (parameters == nullptr && !function->kernel.argument_bytes.empty()) return CUresult::kInvalidValue;
  const auto arguments = std::make_shared<Arguments>(function->kernel, parameters);
  const auto room = world().devices[static_cast<std::size_t>(stream->context->device)].room;
  const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(grid, world().blocks));
  FakeLaunch launch{
      stream->context->device, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr, blocks};
  const auto run = [launch, arguments, function, room, blocks]() mutable {
    launch.arguments = arguments->pointers.data();
    return run_launch(*room, blocks, function->kernel, launch);
  };
  return submit(stream, {"cuLaunchKernel", run, {}});
}

// All blocks at once, or an error.
CUresult launch_cooperative(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                            void** parameters) {
  if (std::uint64_t{grid_x} * grid_y * grid_z > world().blocks) return CUresult::kCooperativeLaunchTooLarge;
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
