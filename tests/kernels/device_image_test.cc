// The device code inside the library: there in a build with nvcc, and absent without.
#include "kernels/device/device_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace tutti::kernels {
namespace {

TEST(DeviceImage, IsAFatbinOfTheBuild) {
  const std::span<const std::byte> image = device_image();
  if (TUTTI_EXPECTS_DEVICE_IMAGE == 0) {
    EXPECT_TRUE(image.empty());
    EXPECT_TRUE(device_architectures().empty());
    return;
  }
  ASSERT_GT(image.size(), 1000u);
  EXPECT_LT(image.size(), std::size_t{8} << 20) << "the whole library is to stay under 10 MB";
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(image.data()) % 8, 0u);
  std::uint32_t magic = 0;
  std::memcpy(&magic, image.data(), sizeof(magic));
  EXPECT_EQ(magic, 0xBA55ED50u);
  const std::span<const int> architectures = device_architectures();
  ASSERT_FALSE(architectures.empty());
  EXPECT_TRUE(std::is_sorted(architectures.begin(), architectures.end()));
  EXPECT_GE(architectures.front(), 75);
}

}  // namespace
}  // namespace tutti::kernels
