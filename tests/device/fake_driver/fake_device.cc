// The fake device: registers kernels with the fake driver. Each launch runs in an emulator until all of its threads
// have finished.
#include "tests/device/fake_driver/fake_device.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tests/device/fake_driver/device_kernels.h"

namespace tutti::testing {
namespace {

using cuda::CUresult;
using cuda::fake::FakeKernel;
using cuda::fake::FakeLaunch;

constexpr unsigned kMaxThreads = 512;  // maximum number of threads in a block, as compiled in entry.cu
constexpr unsigned kWarp = 32;

[[noreturn]] void refuse(const char* name, const char* value) {
  std::fprintf(stderr, "fake device: the environment variable %s has the invalid value '%s'\n", name, value);
  std::abort();
}

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 10);
  if (*text == '\0' || *end != '\0') refuse(name, text);
  return value;
}

// The state that the kernels of one registration share. Any thread may call run(), because streams run at the same
// time.
struct Runner {
  const FakeDeviceOptions options;
  std::atomic<std::uint64_t> launches{0};

  explicit Runner(const FakeDeviceOptions& its_options) : options(its_options) {}

  emu::Options options_of(const FakeLaunch& launch) {
    emu::Options emulator;
    emulator.seed = options.seed + launches.fetch_add(1, std::memory_order_relaxed);
    emulator.policy = options.policy;
    emulator.yield_log2 = options.policy == emu::Policy::kRoundRobin ? 64 : options.yield_log2;
    emulator.weak = options.weak;
    emulator.clock = emu::Clock::kReal;
    emulator.stall_ms = options.stall_ms;
    emulator.stack_bytes = device_kernels().stack_bytes;
    emulator.resident_blocks = launch.resident_blocks;
    return emulator;
  }

  CUresult run(const char* name, const FakeLaunch& launch, std::function<void()> body) {
    const bool flat = launch.grid[1] * launch.grid[2] * launch.block[1] * launch.block[2] == 1;
    if (!flat || launch.block[0] % kWarp != 0) {
      std::fprintf(stderr, "fake device: %s: blocks must be one-dimensional, with a multiple of 32 threads\n", name);
      return CUresult::kLaunchFailed;
    }
    emu::Emulator emulator(options_of(launch));
    emulator.launch(launch.device, launch.grid[0], launch.block[0], std::move(body));
    if (emulator.run() == emu::Emulator::RunResult::kIdle) return CUresult::kSuccess;
    std::fprintf(stderr, "fake device: %s: %s\n", name, emulator.report().c_str());
    return CUresult::kLaunchTimeout;
  }
};

template <class Argument>
FakeKernel make_kernel(const std::shared_ptr<Runner>& runner, const char* name, std::size_t local_bytes,
                       void (*body)(const Argument&)) {
  return {name,
          {sizeof(Argument)},
          [runner, name, body](const FakeLaunch& launch) {
            const auto& argument = *static_cast<const Argument*>(launch.arguments[0]);
            return runner->run(name, launch, [&argument, body] { body(argument); });
          },
          kMaxThreads,
          local_bytes};
}

}  // namespace

FakeDeviceOptions FakeDeviceOptions::from_environment() {
  FakeDeviceOptions options;
  options.seed = number("FAKE_CUDA_SEED", options.seed);
  options.weak = number("FAKE_CUDA_WEAK", options.weak ? 1 : 0) != 0;
  options.stall_ms = number("FAKE_CUDA_STALL_MS", options.stall_ms);
  constexpr const char* kPolicy = "FAKE_CUDA_POLICY";
  if (const char* text = std::getenv(kPolicy); text != nullptr) {
    const std::string_view policy = text;
    if (policy == "round-robin")
      options.policy = emu::Policy::kRoundRobin;
    else if (policy == "random")
      options.policy = emu::Policy::kRandom;
    else if (policy == "priority")
      options.policy = emu::Policy::kPriority;
    else
      refuse(kPolicy, text);
  }
  return options;
}

void register_device_kernels(const cuda::fake::Control& control, const FakeDeviceOptions& options) {
  // A shared_ptr, because the fake driver keeps a copy of each kernel.
  const auto runner = std::make_shared<Runner>(options);
  // The bytes of local memory are those of the real kernels, compiled for sm_90 with CUDA 13.0.
  const auto add = [&]<class Argument>(const char* name, std::size_t local_bytes, void (*body)(const Argument&)) {
    control.register_kernel(make_kernel(runner, name, local_bytes, body));
  };
  const DeviceKernels& kernels = device_kernels();
  add("tutti_evaluate_simple", 816, kernels.evaluate_simple);
  add("tutti_evaluate_ll", 64, kernels.evaluate_ll);
  add("tutti_evaluate_ll128", 256, kernels.evaluate_ll128);
  add("tutti_transfer", 0, kernels.transfer);
  add("tutti_reduce", 0, kernels.reduce);
  add("tutti_copy", 0, kernels.copy);
  const auto empty = [runner](const FakeLaunch& launch) { return runner->run("tutti_empty", launch, [] {}); };
  control.register_kernel({"tutti_empty", {}, empty, kMaxThreads});
}

}  // namespace tutti::testing
