// What the tests on a GPU share: the GPU, or the reason why there is none to test on.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "bench/gpu/gpu.h"
#include "fake_cuda/control.h"
#include "kernels/device/device_image.h"

namespace tutti::test {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = bench::Gpu::open(0, kernels::device_image());
    if (!gpu && gpu.error().code == ErrorCode::kUnsupported) GTEST_SKIP() << "not run: " << to_string(gpu.error());
    ASSERT_TRUE(gpu.ok()) << to_string(gpu.error());
    gpu_ = *std::move(gpu);
  }

  bench::Gpu& gpu() { return *gpu_; }

  // Whether a kernel that is not found is no failure: in a build without nvcc, and over the double of the driver.
  static bool has_no_kernels() {
    return kernels::device_image().empty() || (cuda::Driver::loaded() != nullptr && cuda::fake::control() != nullptr);
  }

 private:
  std::unique_ptr<bench::Gpu> gpu_;
};

}  // namespace tutti::test
