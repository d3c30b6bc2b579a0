// RankDevice: finds the GPU of a rank and loads the library's kernels.
#include "device/rank_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "device/process_registry.h"
#include "engine/arguments.h"
#include "kernels/device/call.h"
#include "kernels/device/device_image.h"
#include "kernels/device/transfer_call.h"
#include "tutti/communicator.h"

namespace tutti::detail {

// The device code of one context, as long as a RankDevice uses it. shared_in_process() finds it by the number of the
// context (cuCtxGetId).
struct RankDevice::ContextCode {
  std::mutex mutex;
  std::optional<cuda::Module> module;  // empty until it is loaded, and if it cannot be loaded
};

namespace {

constexpr const char* kEvaluators[] = {"tutti_evaluate_simple", "tutti_evaluate_ll", "tutti_evaluate_ll128"};
constexpr const char* kTransfer = "tutti_transfer";

// Launches each kernel without a call, once in each way in which calls are launched (a cooperative launch may need
// resources of its own), and waits until they have ended.
Status warm_up(const cuda::Driver& driver, const cuda::Module& module, std::uint32_t block_threads) {
  auto stream = cuda::Stream::create(driver);
  if (!stream) return stream.error();
  const auto launched = [&](cuda::CUresult result) {
    return driver.check(result, "launching a kernel for the first time");
  };
  auto transfer = module.function(kTransfer);
  if (!transfer) return transfer.error();
  device::TransferLaunch none;
  void* no_transfers[] = {&none};
  TUTTI_TRY(launched(
      driver.api().launch_kernel(*transfer, 1, 1, 1, block_threads, 1, 1, 0, stream->handle(), no_transfers, nullptr)));
  for (const char* name : kEvaluators) {
    auto function = module.function(name);
    if (!function) return function.error();
    device::Launch launch;
    void* parameters[] = {&launch};
    TUTTI_TRY(launched(
        driver.api().launch_kernel(*function, 1, 1, 1, block_threads, 1, 1, 0, stream->handle(), parameters, nullptr)));
    TUTTI_TRY(launched(driver.api().launch_cooperative_kernel(*function, 1, 1, 1, block_threads, 1, 1, 0,
                                                              stream->handle(), parameters)));
  }
  return stream->synchronize();
}

}  // namespace

CurrentContext CurrentContext::of_this_thread() {
  CurrentContext current{.driver = cuda::Driver::loaded()};
  if (current.driver == nullptr) return current;
  // This fails if the process has loaded the driver but not initialized it. Then there is no current context either.
  if (current.driver->api().ctx_get_current(&current.context) != cuda::CUresult::kSuccess) current.context = nullptr;
  return current;
}

Result<std::optional<cuda::ContextScope>> CurrentContext::enter() const {
  if (context == nullptr) return std::optional<cuda::ContextScope>();
  auto scope = cuda::ContextScope::enter(*driver, context);
  if (!scope) return scope.error();
  return std::optional<cuda::ContextScope>(std::move(*scope));
}

Result<std::shared_ptr<RankDevice>> RankDevice::find(std::optional<std::int32_t> wanted) {
  const std::shared_ptr<RankDevice> none;
  if (wanted && *wanted == CommunicatorOptions::kNoDevice) return none;
  if (wanted && *wanted < 0) return invalid_argument(fmt::format("device {} is negative", *wanted));
  const cuda::Driver* driver = nullptr;
  cuda::CUcontext context = nullptr;
  int number = wanted.value_or(-1);
  std::optional<cuda::PrimaryContext> primary;
  if (wanted) {
    auto opened = cuda::Driver::open();
    if (!opened) return opened.error();
    driver = *opened;
    const Result<int> devices = driver->device_count();
    if (!devices) return devices.error();
    if (number >= *devices) {
      return invalid_argument(
          fmt::format("device {} was asked for; this machine has {} (0 to {})", number, *devices, *devices - 1));
    }
    auto retained = cuda::PrimaryContext::retain(*driver, number);
    if (!retained) return retained.error();
    context = retained->context();
    primary.emplace(std::move(*retained));
  } else {
    const CurrentContext current = CurrentContext::of_this_thread();
    if (current.context == nullptr) return none;
    driver = current.driver;
    context = current.context;
    TUTTI_TRY(driver->check(driver->api().ctx_get_device(&number), "finding the device of the current context"));
  }
  std::shared_ptr<RankDevice> device(
      // not make_shared, because the constructor is private
      new RankDevice(*driver, number, context, std::move(primary)));
  TUTTI_TRY(driver->check(driver->api().device_get_uuid(&device->uuid_, number),
                          fmt::format("cuDeviceGetUuid of device {}", number)));
  return device;
}

Result<RankDevice::Code> RankDevice::code(std::uint32_t block_threads) {
  const cuda::RelaxedCapture relaxed(driver_);
  const std::scoped_lock lock(mutex_);
  auto scope = cuda::ContextScope::enter(driver_, context_);
  if (!scope) return scope.error();
  return load(block_threads);
}

// Loads the module, unless another RankDevice of the context has loaded it.
Status RankDevice::load_module(std::uint32_t block_threads) {
  const auto image = kernels::device_image();
  if (image.empty()) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 "this build of Tutti has no device code: build it where nvcc is found"};
  }
  unsigned long long id = 0;
  TUTTI_TRY(driver_.check(driver_.api().ctx_get_id(context_, &id), "identifying the context of a rank"));
  const std::shared_ptr<ContextCode> shared = shared_in_process<ContextCode>(id);
  const std::scoped_lock lock(shared->mutex);
  if (shared->module) {
    code_ = shared;
    return {};
  }
  auto loaded = cuda::Module::load(driver_, image.data());
  if (!loaded) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 fmt::format("the library's device code cannot be loaded on device {}: {}; update the driver, or add "
                             "the architecture of this GPU to TUTTI_CUDA_ARCHITECTURES",
                             number_, loaded.error().message)};
  }
  TUTTI_TRY(warm_up(driver_, *loaded, block_threads));
  shared->module = std::move(*loaded);
  code_ = shared;
  return {};
}

Result<RankDevice::Code> RankDevice::load(std::uint32_t block_threads) {
  if (!code_) TUTTI_TRY(load_module(block_threads));
  int multiprocessors = 0;
  TUTTI_TRY(driver_.check(
      driver_.api().device_get_attribute(&multiprocessors, cuda::DeviceAttribute::kMultiprocessorCount, number_),
      "counting the multiprocessors of a device"));
  Code code;
  int least = 1 << 20;
  const auto find = [&](const char* name, cuda::CUfunction& found) -> Status {
    auto function = code_->module->function(name);
    if (!function) return function.error();
    found = *function;
    int blocks = 0;
    TUTTI_TRY(
        driver_.check(driver_.api().occupancy_max_active_blocks(&blocks, found, static_cast<int>(block_threads), 0),
                      "asking how many blocks of a kernel run at once"));
    least = std::min(least, blocks);
    return {};
  };
  for (std::size_t p = 0; p < code.evaluate.size(); ++p) TUTTI_TRY(find(kEvaluators[p], code.evaluate[p]));
  TUTTI_TRY(find(kTransfer, code.transfer));
  code.blocks_at_once = static_cast<std::uint32_t>(std::max(least, 0) * std::max(multiprocessors, 0));
  if (code.blocks_at_once == 0) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 fmt::format("no block of {} threads fits on device {}", block_threads, number_)};
  }
  return code;
}

}  // namespace tutti::detail
