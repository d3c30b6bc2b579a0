// A library that is preloaded together with the fake driver, see fake_gpus.sh. It registers the library's kernels with
// the fake driver before the program begins, so that an unmodified program makes calls on device memory as with a real
// GPU. If libcuda.so.1 is not the fake driver, it prints a message and does nothing.
#include <cstdio>

#include "tests/device/fake_driver/fake_device.h"

namespace {

__attribute__((constructor)) void make_kernels_known() {
  const tutti::cuda::fake::Control* fake = tutti::cuda::fake::control();
  if (fake == nullptr) {
    std::fprintf(stderr, "fake device: libcuda.so.1 is not the fake driver, so no kernels are registered\n");
    return;
  }
  tutti::testing::register_device_kernels(*fake, tutti::testing::FakeDeviceOptions::from_environment());
}

}  // namespace
