// Tests of the fake device with kernels that use no connections, launched with the driver's functions only.
#include "kernels/device/plain.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/device/unit/evaluate_support.h"

namespace tutti::testing {
namespace {

using cuda::CUresult;

class DevicePlain : public FakeDeviceTest {
 protected:
  void SetUp() override {
    FakeDeviceTest::SetUp();
    register_device_kernels(fake(), FakeDeviceOptions::from_environment());
  }
};

TEST_F(DevicePlain, TheImageOfEveryBuildHasTheLibrarysKernels) {
  const auto image = kernels::device_image();
  ASSERT_GE(image.size(), 4u);
  EXPECT_EQ(std::memcmp(image.data(), "fake", 4), 0)
      << "the device code of the library was linked instead of the fake text";
  const cuda::Module module = load_module();
  for (const char* name : {"tutti_evaluate_simple", "tutti_evaluate_ll", "tutti_evaluate_ll128", "tutti_reduce",
                           "tutti_copy", "tutti_empty"})
    EXPECT_TRUE(module.function(name).ok()) << name;
  EXPECT_FALSE(module.function("tutti_evaluate").ok());
}

// The launch has more blocks than can be resident (FAKE_CUDA_BLOCKS), so some of them run after others have finished.
TEST_F(DevicePlain, CopyReachesEveryWord) {
  constexpr std::uint64_t kWords = 64 * 512 + 7;
  constexpr std::uint64_t kBytes = kWords * 16;
  const cuda::Module module = load_module();
  const auto stream = good(cuda::Stream::create(driver()));
  const auto from = good(cuda::DeviceMemory::allocate(driver(), kBytes));
  const auto to = good(cuda::DeviceMemory::allocate(driver(), kBytes + 16));
  constexpr std::uint64_t kPattern = 0x0123456789ABCDEF;
  const std::vector<std::uint64_t> source(kBytes / 8, kPattern);
  upload(source.data(), kBytes, from.address(), stream);
  ASSERT_EQ(api().memset_d8_async(to.address(), 0, kBytes + 16, stream.handle()), CUresult::kSuccess);
  const device::CopyWork copy{on_device(from.address()), on_device(to.address()), kWords};
  ASSERT_EQ(
      launch_kernel(driver(), module, "tutti_copy", {64, 512 / (kSizeDivisor * kSizeDivisor)}, stream.handle(), copy),
      CUresult::kSuccess);
  std::vector<std::uint64_t> result(kBytes / 8 + 2);
  download(to.address(), result.data(), kBytes + 16, stream);
  std::vector<std::uint64_t> expected(kBytes / 8, kPattern);
  expected.resize(kBytes / 8 + 2);
  EXPECT_EQ(result, expected);
}

TEST_F(DevicePlain, ReduceAddsItsSources) {
  constexpr std::uint64_t kCount = 10'001;
  constexpr std::uint64_t kBytes = kCount * sizeof(float);
  const cuda::Module module = load_module();
  const auto stream = good(cuda::Stream::create(driver()));
  std::vector<cuda::DeviceMemory> memory;
  device::PlainWork work{};
  for (std::uint32_t source = 0; source < 3; ++source) {
    std::vector<float> values(kCount);
    std::iota(values.begin(), values.end(), static_cast<float>(source * 1000));
    memory.push_back(good(cuda::DeviceMemory::allocate(driver(), kBytes)));
    upload(values.data(), kBytes, memory.back().address(), stream);
    work.sources[work.source_count++] = on_device(memory.back().address());
  }
  for (int destination = 0; destination < 2; ++destination) {
    memory.push_back(good(cuda::DeviceMemory::allocate(driver(), kBytes)));
    work.destinations[work.destination_count++] = on_device(memory.back().address());
  }
  work.count = kCount;
  work.mode = device::ReduceMode::kFast;
  ASSERT_EQ(launch_kernel(driver(), module, "tutti_reduce", {4, 128}, stream.handle(), work), CUresult::kSuccess);
  std::vector<float> expected(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) expected[i] = static_cast<float>(3 * i + 3000);
  for (std::size_t destination = 3; destination < 5; ++destination) {
    std::vector<float> result(kCount);
    download(memory[destination].address(), result.data(), kBytes, stream);
    EXPECT_EQ(result, expected);
  }
}

TEST_F(DevicePlain, BlocksThatEntryCuDoesNotAllowAreRefused) {
  cuda::CUcontext lent = fake().create_context(0);  // a context of its own, because the last launch breaks it
  {
    const auto scope = good(cuda::ContextScope::enter(driver(), lent));
    const cuda::Module module = load_module();
    const auto stream = good(cuda::Stream::create(driver()));
    const auto copy = [&](unsigned threads) {
      return launch_kernel(driver(), module, "tutti_copy", {1, threads}, stream.handle(), device::CopyWork{});
    };
    EXPECT_EQ(copy(544), CUresult::kInvalidValue);
    EXPECT_EQ(copy(512), CUresult::kSuccess);
    EXPECT_TRUE(stream.synchronize().ok());
    EXPECT_EQ(copy(33), CUresult::kSuccess);  // a real device would run the kernel, with a wrong result
    EXPECT_FALSE(stream.synchronize().ok());
  }
  fake().destroy_context(lent);
}

}  // namespace
}  // namespace tutti::testing
