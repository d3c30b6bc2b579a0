// Tests CRC-32C: published values, and the fast implementations against the bitwise definition.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace tutti {
namespace {

std::uint32_t by_definition(const std::vector<std::uint8_t>& bytes) {
  std::uint32_t state = ~std::uint32_t{0};
  for (const std::uint8_t byte : bytes) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~state;
}

std::vector<std::uint8_t> random_bytes_of(std::size_t count) {
  std::mt19937 random(static_cast<std::uint32_t>(count));
  std::vector<std::uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

// The values are from RFC 3720, appendix B.4, and the check value of the CRC catalogues.
TEST(Crc32c, GivesThePublishedValues) {
  const std::vector<std::uint8_t> zeros(32, 0);
  const std::vector<std::uint8_t> ones(32, 0xff);
  std::vector<std::uint8_t> rising;
  for (std::uint8_t i = 0; i < 32; ++i) rising.push_back(i);
  const std::string_view digits = "123456789";
  for (const auto& sum : {crc32c, crc32c_by_tables}) {
    EXPECT_EQ(sum(zeros.data(), zeros.size(), 0), 0x8a9136aaU);
    EXPECT_EQ(sum(ones.data(), ones.size(), 0), 0x62a8ab43U);
    EXPECT_EQ(sum(rising.data(), rising.size(), 0), 0x46dd794eU);
    EXPECT_EQ(sum(digits.data(), digits.size(), 0), 0xe3069283U);
    EXPECT_EQ(sum(nullptr, 0, 0), 0U);
  }
}

TEST(Crc32c, BothWaysAgreeWithTheDefinition) {
  std::vector<std::size_t> counts = {3071, 3072, 3073, 3079, 3080, 6143, 6144, 9215, 9216, 9217, 131072, 131081};
  for (std::size_t count = 0; count < 80; ++count) counts.push_back(count);
  for (const std::size_t count : counts) {
    const auto bytes = random_bytes_of(count);
    const std::uint32_t wanted = by_definition(bytes);
    EXPECT_EQ(crc32c(bytes.data(), count), wanted) << count;
    EXPECT_EQ(crc32c_by_tables(bytes.data(), count), wanted) << count;
  }
}

TEST(Crc32c, GoesOnWhereItStopped) {
  const auto bytes = random_bytes_of(10000);
  const std::uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (const std::size_t cut : {0, 1, 7, 8, 1024, 3072, 5000, 9999, 10000}) {
    EXPECT_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, crc32c(bytes.data(), cut)), whole) << cut;
    EXPECT_EQ(crc32c_by_tables(bytes.data() + cut, bytes.size() - cut, crc32c_by_tables(bytes.data(), cut)), whole);
  }
}

TEST(Crc32c, FindsEveryFlippedBit) {
  auto bytes = random_bytes_of(4000);
  const std::uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ (1U << (bit % 8)));
    ASSERT_NE(crc32c(bytes.data(), bytes.size()), whole) << bit;
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ (1U << (bit % 8)));
  }
}

}  // namespace
}  // namespace tutti
