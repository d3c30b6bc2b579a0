// The library's kernels for the fake driver: launches run in the emulator (tests/device/emulator). With this and the
// fake libcuda.so.1 a program goes the whole way from the driver's functions to device code, without a GPU.
//
// Each launch is a world of its own, run by the double's thread of the stream that it is in. Launches of several
// streams, devices and processes run at once and may wait for each other through memory, as far as the double finds
// room for them (FAKE_CUDA_BLOCKS). A launch of which nothing is stored for too long ends as kLaunchTimeout, and stderr
// says where its threads stood.
//
// A program that links tutti_fake_device has "fake device code" for kernels::device_image(), whatever the build: the
// double loads that as a module and finds the kernels below in it.
#pragma once

#include <cstdint>

#include "tests/device/emulator/world.h"
#include "tests/device/fake_driver/control.h"

namespace tutti::testing {

// By how much large launches are made smaller: a fiber costs ThreadSanitizer milliseconds.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr unsigned kThinner = 4;
#else
inline constexpr unsigned kThinner = 1;
#endif

struct DeviceDoubleOptions {
  std::uint64_t seed = 1;  // the first launch's, each later one's is one more
  emu::Policy policy = emu::Policy::kRoundRobin;
  unsigned yield_log2 = 6;  // of the policies that draw: see emu::Options
  // Stores that others see late. Right between worlds as well: a block's buffer holds bytes of its own stores only and
  // gives them away before the release that announces them, and what it has read is forgotten at each acquire.
  bool weak = false;
  std::uint64_t stall_ms = 60'000;

  // FAKE_CUDA_SEED, FAKE_CUDA_POLICY (round-robin, random, priority), FAKE_CUDA_WEAK (0 or 1), FAKE_CUDA_STALL_MS; what
  // is not set stays as above. Ends the process where one is not understood: it is a test's mistake.
  static DeviceDoubleOptions from_environment();
};

// Makes the kernels of kernels/device/entry.cu known, under the same names. Before modules are asked for them.
void register_device_kernels(const cuda::fake::Control& control, const DeviceDoubleOptions& options);

}  // namespace tutti::testing
