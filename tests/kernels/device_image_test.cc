// Tests of the device code in the library. It exists in builds with nvcc and is empty in builds without.
#include "kernels/device/device_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

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

// One part of a fatbin. The format is not documented; this is how nvcc 13 writes it, and the vendor's tools (cuobjdump)
// show the same parts.
struct FatbinPart {
  bool machine_code = false;  // false: PTX
  int architecture = 0;
};

template <class T>
T read_at(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  if (at + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::vector<FatbinPart> parts_of(std::span<const std::byte> image) {
  constexpr std::uint16_t kMachineCode = 2;
  std::vector<FatbinPart> parts;
  std::size_t at = read_at<std::uint16_t>(image, 6);
  const std::size_t end = at + read_at<std::uint64_t>(image, 8);
  EXPECT_EQ(end, image.size());
  while (at < end) {
    const auto header_bytes = read_at<std::uint32_t>(image, at + 4);
    parts.push_back({.machine_code = read_at<std::uint16_t>(image, at) == kMachineCode,
                     .architecture = static_cast<int>(read_at<std::uint32_t>(image, at + 28))});
    if (header_bytes == 0) break;
    at += header_bytes + read_at<std::uint64_t>(image, at + 8);
  }
  EXPECT_EQ(at, end);
  return parts;
}

TEST(DeviceImage, HasCodeForEveryArchitectureAndTheNewestAsPtx) {
  const std::span<const int> architectures = device_architectures();
  if (architectures.empty()) GTEST_SKIP() << "this build has no device code: there was no nvcc, or TUTTI_CUDA is OFF";
  std::vector<int> machine_code;
  std::vector<int> ptx;
  for (const FatbinPart& part : parts_of(device_image()))
    (part.machine_code ? machine_code : ptx).push_back(part.architecture);
  std::sort(machine_code.begin(), machine_code.end());
  EXPECT_EQ(machine_code, std::vector<int>(architectures.begin(), architectures.end()));
  EXPECT_EQ(ptx, std::vector<int>{architectures.back()});
}

}  // namespace
}  // namespace tutti::kernels
