// Narrows all 2^32 float32 values to each 8-bit float and compares the results with the definition. The values are
// visited in ascending order, so the nearest float8 is either the previous one or the next one: the next one after the
// midpoint between the two, and also on the midpoint if the next one is even.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "float8_support.h"
#include "kernels/float8.h"

namespace tutti::kernels {
namespace {

template <class Float8>
void expect_every_float32_is_rounded(const testing::Format8& format) {
  const testing::Rounding values(format);
  int nearest = 0;
  for (std::uint32_t bits = 0; bits <= kFloat32Infinity; ++bits) {
    const auto value = static_cast<double>(std::bit_cast<float>(bits));
    while (nearest < format.largest) {
      const double middle = (values.at(nearest) + values.at(nearest + 1)) / 2;
      if (value < middle || (value == middle && nearest % 2 == 0)) break;
      ++nearest;
    }
    const int narrow = narrowed_from_bits<Float8>(bits).bits;
    const int minus_narrow = narrowed_from_bits<Float8>(bits | kFloat32Sign).bits;
    if (narrow == nearest && minus_narrow == (nearest | 0x80)) continue;
    FAIL() << std::hex << bits << " gives " << narrow << " and " << minus_narrow << ", not " << nearest;
  }
  EXPECT_EQ(nearest, format.largest);
  for (std::uint32_t bits = kFloat32Infinity + 1; bits < kFloat32Sign; ++bits) {
    const int narrow = narrowed_from_bits<Float8>(bits).bits;
    const int minus_narrow = narrowed_from_bits<Float8>(bits | kFloat32Sign).bits;
    if (narrow == testing::kCanonicalNan && minus_narrow == testing::kCanonicalNan) continue;
    FAIL() << std::hex << bits << " gives " << narrow << " and " << minus_narrow << ", not the canonical NaN";
  }
}

TEST(Float8Exhaustive, EveryFloat32IsRoundedToE4M3) {
  expect_every_float32_is_rounded<Float8E4M3>(testing::kE4M3Format);
}
TEST(Float8Exhaustive, EveryFloat32IsRoundedToE5M2) {
  expect_every_float32_is_rounded<Float8E5M2>(testing::kE5M2Format);
}

}  // namespace
}  // namespace tutti::kernels
