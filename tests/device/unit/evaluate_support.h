// Helpers for tests of the fake device: they load the library's module and launch its kernels with the driver's
// functions.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cuda/resources.h"
#include "kernels/device/call.h"
#include "kernels/device/device_image.h"
#include "tests/device/fake_driver/fake_device.h"
#include "tests/device/unit/driver_support.h"

namespace tutti::testing {

struct Shape {
  unsigned blocks = 1;
  unsigned threads = 32;
};

template <class Argument>
cuda::CUresult launch_kernel(const cuda::Driver& driver, const cuda::Module& module, const char* name, Shape shape,
                             cuda::CUstream stream, Argument argument) {
  const auto function = module.function(name);
  if (!function.ok()) return cuda::CUresult::kNotFound;
  std::array<void*, 1> arguments = {&argument};
  return driver.api().launch_kernel(*function, shape.blocks, 1, 1, shape.threads, 1, 1, 0, stream, arguments.data(),
                                    nullptr);
}

inline const char* evaluator_of(device::Protocol protocol) {
  if (protocol == device::Protocol::kSimple) return "tutti_evaluate_simple";
  return protocol == device::Protocol::kLl ? "tutti_evaluate_ll" : "tutti_evaluate_ll128";
}

inline cuda::CUresult launch_evaluator(const cuda::Driver& driver, const cuda::Module& module,
                                       device::Protocol protocol, unsigned threads, cuda::CUstream stream,
                                       const device::Launch& launch) {
  return launch_kernel(driver, module, evaluator_of(protocol), {device::blocks_of(launch), threads}, stream, launch);
}

class FakeDeviceTest : public cuda::CudaTest {
 protected:
  void SetUp() override {
    // Enough blocks for one launch of 8 ranks with 4 slices each. The fake driver reads the variable once, when it is
    // first used.
    ASSERT_EQ(setenv("FAKE_CUDA_BLOCKS", "32", 1), 0);
    cuda::CudaTest::SetUp();
  }

  // Loads the module, with the kernels that were registered last.
  cuda::Module load_module() const { return good(cuda::Module::load(driver(), kernels::device_image().data())); }

  void upload(const void* from, std::size_t bytes, cuda::CUdeviceptr to, const cuda::Stream& stream) const {
    ASSERT_EQ(api().memcpy_htod_async(to, from, bytes, stream.handle()), cuda::CUresult::kSuccess);
  }
  void download(cuda::CUdeviceptr from, void* to, std::size_t bytes, const cuda::Stream& stream) const {
    ASSERT_EQ(api().memcpy_dtoh_async(to, from, bytes, stream.handle()), cuda::CUresult::kSuccess);
    const Status status = stream.synchronize();
    ASSERT_TRUE(status.ok()) << to_string(status.error());
  }
};

template <class T = std::byte>
T* on_device(cuda::CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

}  // namespace tutti::testing
