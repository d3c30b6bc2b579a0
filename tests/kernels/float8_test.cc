// Tests of the 8-bit floats: every value, every midpoint and every pair of values is compared with the definition. The
// scalar conversions are called directly; those of the SIMD targets are tested through the reductions that use them.
#include "kernels/float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <sstream>
#include <vector>

#include "float8_support.h"

namespace tutti::kernels {
namespace {

using testing::Format8;
using testing::kCanonicalNan;
using testing::kE4M3Format;
using testing::kE5M2Format;
using testing::Rounding;
using Bytes = std::vector<std::uint8_t>;

class Float8 : public ::testing::TestWithParam<Format8> {
 protected:
  static const Format8& format() { return GetParam(); }
  static double decode(int bits) { return testing::decode8(format(), bits); }

  static float widened(int bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    return std::bit_cast<float>(format().type == DataType::kFloat8E4M3 ? widened_bits(Float8E4M3{byte})
                                                                       : widened_bits(Float8E5M2{byte}));
  }
  static std::uint8_t narrowed(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return format().type == DataType::kFloat8E4M3 ? narrowed_from_bits<Float8E4M3>(bits).bits
                                                  : narrowed_from_bits<Float8E5M2>(bits).bits;
  }
  static Reduction op(ReduceOp op) { return {.type = format().type, .op = op, .scale = {}}; }

  // Returns two vectors with every pair of values: element i of the first is the upper byte of i, and of the second the
  // lower byte.
  static std::vector<Bytes> pairs() {
    std::vector<Bytes> both(2, Bytes(0x10000));
    for (std::size_t i = 0; i < 0x10000; ++i) {
      both[0][i] = static_cast<std::uint8_t>(i >> 8);
      both[1][i] = static_cast<std::uint8_t>(i);
    }
    return both;
  }
  static Bytes every_value() {
    Bytes every(0x100);
    for (std::size_t bits = 0; bits < every.size(); ++bits) every[bits] = static_cast<std::uint8_t>(bits);
    return every;
  }

  // Checks that the reference and every target give `expected` for these sources.
  static void expect(const Reduction& reduction, const std::vector<Bytes>& sources, const Bytes& expected) {
    std::vector<const std::byte*> from;
    for (const Bytes& source : sources) from.push_back(reinterpret_cast<const std::byte*>(source.data()));
    Bytes result(expected.size());
    auto* to = reinterpret_cast<std::byte*>(result.data());
    reduce_reference(reduction, from, std::span(&to, 1), result.size());
    compare(result, expected, "reference", sources);
    testing::for_each_target(
        [&] { compare(testing::reduce_vectors<std::uint8_t>(reduction, sources), expected, target_name(), sources); });
  }

 private:
  static void compare(const Bytes& result, const Bytes& expected, const char* implementation,
                      const std::vector<Bytes>& sources) {
    const auto wrong = std::mismatch(expected.begin(), expected.end(), result.begin()).first - expected.begin();
    if (wrong == std::ssize(expected)) return;
    const auto i = static_cast<std::size_t>(wrong);
    std::ostringstream from;
    for (const Bytes& source : sources) from << std::hex << " " << +source[i];
    ADD_FAILURE() << implementation << std::hex << ": " << +result[i] << ", not " << +expected[i] << ", from"
                  << from.str();
  }
};

TEST_P(Float8, WideningIsExactForEveryValue) {
  for (int bits = 0; bits < 0x100; ++bits) {
    const double expected = decode(bits);
    if (std::isnan(expected)) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(widened(bits)), kFloat32Nan) << std::hex << bits;
    } else {
      ASSERT_EQ(static_cast<double>(widened(bits)), expected) << std::hex << bits;
      ASSERT_EQ(std::signbit(widened(bits)), bits >= 0x80) << std::hex << bits;
    }
  }
}

TEST(Float8Formats, HaveTheLandmarksOfTheirSpecification) {
  const auto e4m3 = [](std::uint8_t bits) { return std::bit_cast<float>(widened_bits(Float8E4M3{bits})); };
  const auto e5m2 = [](std::uint8_t bits) { return std::bit_cast<float>(widened_bits(Float8E5M2{bits})); };
  EXPECT_EQ(e4m3(0x38), 1.0f);
  EXPECT_EQ(e4m3(0x7E), 448.0f);
  EXPECT_EQ(e4m3(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3(0x07), 0.875f * 0x1p-6f);
  EXPECT_EQ(e4m3(0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(e4m3(0x7F)) && std::isnan(e4m3(0xFF)));
  EXPECT_EQ(e5m2(0x3C), 1.0f);
  EXPECT_EQ(e5m2(0x7B), 57344.0f);
  EXPECT_EQ(e5m2(0x04), 0x1p-14f);
  EXPECT_EQ(e5m2(0x03), 0.75f * 0x1p-14f);
  EXPECT_EQ(e5m2(0x01), 0x1p-16f);
  EXPECT_EQ(e5m2(0xFC), -INFINITY);
  EXPECT_TRUE(std::isnan(e5m2(0x7D)) && std::isnan(e5m2(0xFE)) && std::isnan(e5m2(0x7F)));
}

TEST_P(Float8, NarrowingRoundsToNearestEvenBesideEveryValueAndEveryMidpoint) {
  const Rounding round(format());
  const auto check = [&](double value) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    for (const std::uint32_t near : {bits - 1, bits, bits + 1}) {
      for (const std::uint32_t sign : {0u, kFloat32Sign}) {
        const auto beside = std::bit_cast<float>(near ^ sign);
        ASSERT_EQ(narrowed(beside), round(static_cast<double>(beside))) << std::hex << (near ^ sign);
      }
    }
  };
  for (int bits = 0; bits < format().largest; ++bits) {
    check(decode(bits));
    check((decode(bits) + decode(bits + 1)) / 2);
  }
  const double step = decode(format().largest) - decode(format().largest - 1);
  for (const double past : {0.0, 0.5, 1.0, 1.5}) check(decode(format().largest) + past * step);
  check(static_cast<double>(std::numeric_limits<float>::max()));  // also checks infinity, the next value
}

// Checks a sample of the values; float8_exhaustive_test.cc checks all of them.
TEST_P(Float8, NarrowingRoundsAnyBitsLikeTheDefinition) {
  constexpr std::uint32_t kStride = 4099;
  const Rounding round(format());
  std::uint8_t last = 0;
  for (std::uint32_t bits = 0; bits < kFloat32Sign; bits += kStride) {
    const auto value = std::bit_cast<float>(bits);
    const std::uint8_t narrow = narrowed(value);
    ASSERT_EQ(narrow, round(static_cast<double>(value))) << std::hex << bits;
    ASSERT_GE(narrow, last) << "not monotone at " << std::hex << bits;
    ASSERT_EQ(narrowed(-value), narrow == kCanonicalNan ? kCanonicalNan : narrow | 0x80) << std::hex << bits;
    last = narrow;
  }
}

TEST_P(Float8, EverywhereASumOfTwoIsRoundedLikeTheDefinition) {
  const Rounding round(format());
  const std::vector<Bytes> both = pairs();
  Bytes expected(both[0].size());
  Reduction average = op(ReduceOp::kAvg);
  average.divisor = 3;
  for (const Reduction& reduction : {op(ReduceOp::kSum), average}) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      auto sum = static_cast<float>(decode(both[0][i]) + decode(both[1][i]));
      if (reduction.divisor != 1) sum = static_cast<float>(static_cast<double>(sum) / 3);
      expected[i] = round(static_cast<double>(sum));
    }
    expect(reduction, both, expected);
  }
}

TEST_P(Float8, EverywhereAProductOfTwoIsRoundedLikeTheDefinition) {
  const Rounding round(format());
  const std::vector<Bytes> both = pairs();
  Bytes expected(both[0].size());
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = round(decode(both[0][i]) * decode(both[1][i]));
  expect(op(ReduceOp::kProd), both, expected);
}

// If two values are equal (for example zeros of different signs), the first one is selected. An infinity that is
// selected saturates to the largest finite value.
TEST_P(Float8, EverywhereMinAndMaxPickLikeTheDefinition) {
  const Rounding round(format());
  const std::vector<Bytes> both = pairs();
  Bytes expected(both[0].size());
  for (const ReduceOp selection : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double a = decode(both[0][i]);
      const double b = decode(both[1][i]);
      const bool second = selection == ReduceOp::kMin ? b < a : b > a;
      expected[i] = std::isnan(a) || std::isnan(b) ? kCanonicalNan : round(second ? b : a);
    }
    expect(op(selection), both, expected);
  }
}

// Multiplies every value with factors that are on or next to a midpoint. This tests the effect of each bit that
// rounding drops, on every target.
TEST_P(Float8, EverywhereAFactorBesideAMidpointIsRoundedLikeTheDefinition) {
  const Rounding round(format());
  const Bytes every = every_value();
  Bytes expected(every.size());
  for (int bits = 0; bits < format().largest; ++bits) {
    const auto middle = std::bit_cast<std::uint32_t>(static_cast<float>((decode(bits) + decode(bits + 1)) / 2));
    for (const std::uint32_t near : {middle - 1, middle, middle + 1, middle + 0x10000, middle - 0x10000}) {
      Reduction scaled = op(ReduceOp::kPreMulSum);
      scaled.scaled_source = 0;
      scaled.scale.real = static_cast<double>(std::bit_cast<float>(near));
      for (std::size_t i = 0; i < every.size(); ++i) {
        expected[i] = round(static_cast<double>(static_cast<float>(decode(every[i]) * scaled.scale.real)));
      }
      expect(scaled, {every}, expected);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Float8, EverywhereManySourcesAreRoundedOnce) {
  const Rounding round(format());
  const std::uint64_t seed = 11;
  std::mt19937_64 random(seed);
  for (const std::size_t count : {3, 8, 17}) {
    std::vector<Bytes> sources(count, Bytes(5000));
    for (Bytes& source : sources) {
      for (std::uint8_t& bits : source) bits = static_cast<std::uint8_t>(random() % 0x100);
    }
    Bytes expected(sources[0].size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      auto sum = static_cast<float>(decode(sources[0][i]));
      for (std::size_t source = 1; source < count; ++source) sum += static_cast<float>(decode(sources[source][i]));
      expected[i] = round(static_cast<double>(sum));
    }
    expect(op(ReduceOp::kSum), sources, expected);
  }
}

TEST_P(Float8, SumsSaturateOnlyWhenTheyAreStored) {
  const auto largest = static_cast<std::uint8_t>(format().largest);
  const auto minus_largest = static_cast<std::uint8_t>(largest | 0x80);
  const auto sum = [](std::initializer_list<std::uint8_t> sources, std::uint8_t expected) {
    std::vector<Bytes> vectors;
    for (const std::uint8_t source : sources) vectors.emplace_back(300, source);
    expect(op(ReduceOp::kSum), vectors, Bytes(300, expected));
  };
  sum({largest, largest}, largest);
  sum({minus_largest, minus_largest}, minus_largest);
  sum({largest, largest, minus_largest, minus_largest, 1}, 1);
  sum({largest, 1}, largest);
}

TEST_P(Float8, OneSourceWithoutFactorOrDivisorIsACopyOfTheBits) {
  for (const ReduceOp each : all_reduce_ops()) expect(op(each), {every_value()}, every_value());
}

TEST_P(Float8, AFactorOfOneIsAStepThatSaturatesAndMakesNansCanonical) {
  Bytes expected = every_value();
  for (std::uint8_t& bits : expected) {
    if (std::isnan(decode(bits)))
      bits = kCanonicalNan;
    else if (std::isinf(decode(bits)))
      --bits;
  }
  for (const ReduceOp each : all_reduce_ops()) {
    Reduction scaled = op(each);
    scaled.scaled_source = 0;
    expect(scaled, {every_value()}, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Float8, ::testing::Values(kE4M3Format, kE5M2Format),
                         [](const auto& instance) { return std::string(to_string(instance.param.type)); });

}  // namespace
}  // namespace tutti::kernels
