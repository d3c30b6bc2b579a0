// The library's kernels for the double of the driver, in programs as they are: preloaded with the double, this makes
// the kernels known before the program begins, so that its calls on device memory take the whole way that a GPU's
// would. See fake_gpus.sh. Where libcuda.so.1 is not the double it says so and does nothing.
#include <cstdio>

#include "tests/device/fake_driver/fake_device.h"

namespace {

__attribute__((constructor)) void make_kernels_known() {
  const tutti::cuda::fake::Control* fake = tutti::cuda::fake::control();
  if (fake == nullptr) {
    std::fprintf(stderr, "device double: libcuda.so.1 is not the double of the driver: its kernels stay unknown\n");
    return;
  }
  tutti::testing::register_device_kernels(*fake, tutti::testing::DeviceDoubleOptions::from_environment());
}

}  // namespace
