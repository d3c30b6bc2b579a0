// Kernels as the double wants them: a launch is run by a world until all of its threads have ended.
#include "tests/device/fake_driver/fake_device.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/device/evaluate.h"
#include "kernels/device/plain.h"
#include "tests/device/emulator/port_emu.h"

namespace tutti::testing {
namespace {

using cuda::CUresult;
using cuda::fake::FakeKernel;
using cuda::fake::FakeLaunch;
using device::Protocol;

constexpr unsigned kMostThreads = 512;  // of a block, as entry.cu builds them
constexpr unsigned kWarp = 32;

[[noreturn]] void refuse(const char* name, const char* value) {
  std::fprintf(stderr, "device double: %s is '%s', which it does not know\n", name, value);
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

// What the kernels of one registration share. Any thread: streams run at once.
struct Runner {
  const DeviceDoubleOptions options;
  std::atomic<std::uint64_t> launches{0};

  explicit Runner(const DeviceDoubleOptions& its_options) : options(its_options) {}

  emu::Options options_of(const FakeLaunch& launch) {
    emu::Options world;
    world.seed = options.seed + launches.fetch_add(1, std::memory_order_relaxed);
    world.policy = options.policy;
    world.yield_log2 = options.policy == emu::Policy::kRoundRobin ? 64 : options.yield_log2;
    world.weak = options.weak;
    world.clock = emu::Clock::kReal;
    world.stall_ms = options.stall_ms;
    world.resident_blocks = launch.resident_blocks;
    return world;
  }

  CUresult run(const char* name, const FakeLaunch& launch, std::function<void()> body) {
    const bool flat = launch.grid[1] * launch.grid[2] * launch.block[1] * launch.block[2] == 1;
    if (!flat || launch.block[0] % kWarp != 0) {
      std::fprintf(stderr, "device double: %s was launched with blocks that entry.cu does not allow\n", name);
      return CUresult::kLaunchFailed;
    }
    emu::World world(options_of(launch));
    world.launch(launch.device, launch.grid[0], launch.block[0], std::move(body));
    if (world.run() == emu::World::End::kIdle) return CUresult::kSuccess;
    std::fprintf(stderr, "device double: %s: %s\n", name, world.report().c_str());
    return CUresult::kLaunchTimeout;
  }
};

template <class Argument>
FakeKernel make_kernel(const std::shared_ptr<Runner>& runner, const char* name, void (*body)(const Argument&)) {
  return {name,
          {sizeof(Argument)},
          [runner, name, body](const FakeLaunch& launch) {
            const auto& argument = *static_cast<const Argument*>(launch.arguments[0]);
            return runner->run(name, launch, [&argument, body] { body(argument); });
          },
          kMostThreads};
}

}  // namespace

DeviceDoubleOptions DeviceDoubleOptions::from_environment() {
  DeviceDoubleOptions options;
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

void register_device_kernels(const cuda::fake::Control& control, const DeviceDoubleOptions& options) {
  const auto runner = std::make_shared<Runner>(options);  // shared: the double keeps the kernels, each its own copy
  const auto add = [&]<class Argument>(const char* name, void (*body)(const Argument&)) {
    control.register_kernel(make_kernel(runner, name, body));
  };
  add("tutti_evaluate_simple", &device::evaluate<Protocol::kSimple>);
  add("tutti_evaluate_ll", &device::evaluate<Protocol::kLl>);
  add("tutti_evaluate_ll128", &device::evaluate<Protocol::kLl128>);
  add("tutti_reduce", &device::reduce_plain);
  add("tutti_fill", &device::fill);
  add("tutti_copy", &device::copy);
  const auto empty = [runner](const FakeLaunch& launch) { return runner->run("tutti_empty", launch, [] {}); };
  control.register_kernel({"tutti_empty", {}, empty, kMostThreads});
}

}  // namespace tutti::testing
