// Tests of the conversions of 16-bit floats. Every value is converted in both directions and compared with an
// implementation of rounding in double arithmetic. The scalar conversions are called directly; those of the SIMD
// targets are tested through the sums and selections that use them.
#include "kernels/cpu/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "support.h"

namespace tutti::kernels {
namespace {

using testing::Format;
using testing::kBfloat16Format;
using testing::kFloat16Format;

struct Half {
  DataType type;
  Format format;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);
};

void PrintTo(const Half& half, std::ostream* out) { *out << to_string(half.type); }

const Half kFloat16Half{DataType::kFloat16, kFloat16Format, [](std::uint16_t bits) { return widen(Float16{bits}); },
                        [](float value) { return narrow_to_float16(value).bits; }};
const Half kBfloat16Half{DataType::kBfloat16, kBfloat16Format, [](std::uint16_t bits) { return widen(Bfloat16{bits}); },
                         [](float value) { return narrow_to_bfloat16(value).bits; }};

std::uint16_t quiet_bit(Format format) { return static_cast<std::uint16_t>(1 << (format.fraction_bits - 1)); }

// The expected result of narrowing a float32, including NaN.
std::uint16_t expected_narrow(Format format, float value) {
  if (!std::isnan(value)) return testing::round_to(format, static_cast<double>(value));
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 31 << 15);
  const auto payload = static_cast<std::uint16_t>((bits & 0x007FFFFF) >> (23 - format.fraction_bits));
  const auto infinity = testing::round_to(format, INFINITY);
  return static_cast<std::uint16_t>(sign | infinity | payload | quiet_bit(format));
}

class Conversion : public ::testing::TestWithParam<Half> {};

TEST_P(Conversion, WideningIsExactForEveryValue) {
  const Half& half = GetParam();
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = testing::decode(half.format, static_cast<std::uint16_t>(bits));
    const float wide = half.widen(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000) << bits;
    if (std::isnan(expected)) {
      const std::uint32_t payload = (bits | quiet_bit(half.format)) << (23 - half.format.fraction_bits);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide) & 0x007FFFFFu, payload & 0x007FFFFFu) << bits;
      ASSERT_TRUE(std::isnan(wide)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << bits;
    }
  }
}

TEST_P(Conversion, NarrowingRoundsToNearestEvenBesideEveryValueAndEveryMidpoint) {
  const Half& half = GetParam();
  const auto check = [&](std::uint32_t wide_bits) {
    for (const std::uint32_t near : {wide_bits - 1, wide_bits, wide_bits + 1}) {
      const auto value = std::bit_cast<float>(near);
      ASSERT_EQ(half.narrow(value), expected_narrow(half.format, value)) << std::hex << near;
    }
  };
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = testing::decode(half.format, static_cast<std::uint16_t>(bits));
    const double next = testing::decode(half.format, static_cast<std::uint16_t>(bits + 1));
    check(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    if (std::isfinite(value) && std::isfinite(next)) {
      check(std::bit_cast<std::uint32_t>(static_cast<float>((value + next) / 2)));
    }
  }
  const double largest =
      testing::decode(half.format, static_cast<std::uint16_t>(testing::round_to(half.format, INFINITY) - 1));
  const double last_step =
      largest - testing::decode(half.format, static_cast<std::uint16_t>(testing::round_to(half.format, largest) - 1));
  check(std::bit_cast<std::uint32_t>(static_cast<float>(largest + last_step / 2)));  // rounds to infinity from here on
}

TEST_P(Conversion, NarrowingRoundsAnyBitsLikeTheDefinition) {
  const Half& half = GetParam();
  const std::uint64_t seed = 20240607;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2'000'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const auto value = std::bit_cast<float>(bits);
    ASSERT_EQ(half.narrow(value), expected_narrow(half.format, value)) << std::hex << bits << " seed " << seed;
  }
}

TEST_P(Conversion, OnEveryTargetAValueSelectedFromItselfComesBack) {
  const Half& half = GetParam();
  std::vector<std::uint16_t> every(0x10000);
  for (std::size_t bits = 0; bits < every.size(); ++bits) every[bits] = static_cast<std::uint16_t>(bits);
  testing::for_each_target([&] {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const auto result =
          testing::reduce_vectors<std::uint16_t>({.type = half.type, .op = op, .scale = {}}, {every, every});
      for (std::size_t bits = 0; bits < every.size(); ++bits) {
        const bool nan = std::isnan(testing::decode(half.format, every[bits]));
        ASSERT_EQ(result[bits], nan ? every[bits] | quiet_bit(half.format) : every[bits]) << std::hex << bits;
      }
    }
  });
}

// Adds powers of two, from the smallest subnormal to the largest, to every value. The sums are in every binade, and
// include ties and carries.
TEST_P(Conversion, OnEveryTargetASumOfTwoIsRoundedLikeTheDefinition) {
  const Half& half = GetParam();
  const int smallest_exponent = 1 - half.format.exponent_bias - half.format.fraction_bits;
  const int step = half.format.exponent_bias > 15 ? 5 : 1;
  std::vector<std::uint16_t> every(0x10000);
  for (std::size_t bits = 0; bits < every.size(); ++bits) every[bits] = static_cast<std::uint16_t>(bits);
  for (int exponent = smallest_exponent; exponent <= half.format.exponent_bias; exponent += step) {
    const double addend = std::ldexp(exponent % 2 == 0 ? 1.0 : -1.0, exponent);
    const std::vector<std::uint16_t> addends(every.size(), testing::round_to(half.format, addend));
    std::vector<std::uint16_t> expected(every.size());
    for (std::size_t bits = 0; bits < every.size(); ++bits) {
      const double sum = testing::decode(half.format, every[bits]) + addend;
      const auto canonical =
          static_cast<std::uint16_t>(testing::round_to(half.format, INFINITY) | quiet_bit(half.format));
      expected[bits] = std::isnan(sum) ? canonical : testing::round_to(half.format, static_cast<float>(sum));
    }
    testing::for_each_target([&] {
      const Reduction reduction{.type = half.type, .op = ReduceOp::kSum, .scale = {}};
      const auto result = testing::reduce_vectors<std::uint16_t>(reduction, {every, addends});
      for (std::size_t bits = 0; bits < every.size(); ++bits) {
        ASSERT_EQ(result[bits], expected[bits]) << std::hex << bits << " plus " << addend;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, Conversion, ::testing::Values(kFloat16Half, kBfloat16Half),
                         [](const auto& instance) { return std::string(to_string(instance.param.type)); });

}  // namespace
}  // namespace tutti::kernels
