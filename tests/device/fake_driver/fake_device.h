// The fake device: the library's kernels for the fake driver. Launches run in the emulator. With the fake device and
// the fake driver, a program runs all code from the driver's functions to the device code on a machine without a GPU.
//
// Each launch has an emulator of its own, and the thread of its stream runs it. Launches of several streams, devices
// and processes run at the same time and can wait for each other through memory, if the fake driver has enough free
// blocks for them (FAKE_CUDA_BLOCKS). If a launch stores nothing for too long, it ends with kLaunchTimeout, and the
// source locations of its threads are printed on stderr.
//
// In a program that links tutti_fake_device, kernels::device_image() is the text "fake device code", even if the build
// has real device code. The fake driver loads this text as a module that contains the kernels below.
#pragma once

#include <cstdint>

#include "tests/device/emulator/emulator.h"
#include "tests/device/fake_driver/control.h"

namespace tutti::testing {

// Tests divide the size of large launches by this number. It is larger with sanitizers, because for example every fiber
// takes ThreadSanitizer milliseconds.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr unsigned kSizeDivisor = 4;
#else
inline constexpr unsigned kSizeDivisor = 1;
#endif

struct FakeDeviceOptions {
  std::uint64_t seed = 1;  // seed of the first launch; each later launch has the next number
  emu::Policy policy = emu::Policy::kRoundRobin;
  unsigned yield_log2 = 6;  // for the random policies only, see emu::Options
  // Whether memory is weakly ordered. The model also works between emulators: the store buffer of a block has only
  // bytes of its own stores, they are written to memory before the release that announces them, and each acquire
  // empties the block's cache.
  bool weak = false;
  std::uint64_t stall_ms = 60'000;

  // Reads FAKE_CUDA_SEED, FAKE_CUDA_POLICY (round-robin, random or priority), FAKE_CUDA_WEAK (0 or 1) and
  // FAKE_CUDA_STALL_MS. Options whose variable is not set have the defaults above. Aborts the process if a value is
  // invalid, because that is an error of the test.
  static FakeDeviceOptions from_environment();
};

// Registers the kernels of kernels/device/entry.cu under the same names. Call it before looking up functions in a
// module.
void register_device_kernels(const cuda::fake::Control& control, const FakeDeviceOptions& options);

}  // namespace tutti::testing
