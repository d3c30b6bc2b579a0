// Tests of the reference reductions. Floats are compared with float64 and long double arithmetic, and integers with
// 128-bit arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "support.h"

namespace tutti::kernels {
namespace {

__extension__ typedef __int128 Int128;  // NOLINT(modernize-use-using): an alias takes no __extension__

constexpr std::size_t kCount = 3000;
constexpr std::size_t kSources[] = {1, 2, 3, 8, 17};

template <class T>
T element(const std::byte* buffer, std::size_t index) {
  T value;
  std::memcpy(&value, buffer + index * sizeof(T), sizeof(T));
  return value;
}

// Reduces ordinary sources with the reference, and calls `check(sources, result, element index)` for each element.
template <class Check>
void for_each_element(const Reduction& reduction, std::size_t sources, std::uint64_t seed, const Check& check) {
  const testing::Layout layout{.type = reduction.type, .sources = sources, .destinations = 1, .count = kCount};
  const testing::Buffers buffers(layout, testing::Values::kOrdinary, seed);
  reduce_reference(reduction, buffers.sources(), buffers.destinations(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    check(buffers.sources(), buffers.destinations()[0], i);
    if (::testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << to_string(reduction.type) << " sources " << sources << " element " << i << " seed " << seed;
      return;
    }
  }
}

// --- integers ------------------------------------------------------------

template <class T>
class Integers : public ::testing::Test {
 protected:
  static DataType type() {
    if (std::is_same_v<T, std::int8_t>) return DataType::kInt8;
    if (std::is_same_v<T, std::uint8_t>) return DataType::kUint8;
    if (std::is_same_v<T, std::int32_t>) return DataType::kInt32;
    if (std::is_same_v<T, std::uint32_t>) return DataType::kUint32;
    if (std::is_same_v<T, std::int64_t>) return DataType::kInt64;
    return DataType::kUint64;
  }

  // Every step wraps around. 128 bits are enough for the exact result of a step with 64-bit operands.
  static T expected(const Reduction& reduction, std::span<const std::byte* const> sources, std::size_t i) {
    T value{};
    for (std::size_t source = 0; source < sources.size(); ++source) {
      T operand = element<T>(sources[source], i);
      if (static_cast<std::ptrdiff_t>(source) == reduction.scaled_source) {
        operand = static_cast<T>(Int128{operand} * reduction.scale.integer);
      }
      if (source == 0)
        value = operand;
      else if (reduction.op == ReduceOp::kProd)
        value = static_cast<T>(Int128{value} * operand);
      else if (reduction.op == ReduceOp::kMin)
        value = std::min(value, operand);
      else if (reduction.op == ReduceOp::kMax)
        value = std::max(value, operand);
      else
        value = static_cast<T>(Int128{value} + operand);
    }
    return static_cast<T>(Int128{value} / reduction.divisor);
  }
};

using IntegerTypes =
    ::testing::Types<std::int8_t, std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(Integers, IntegerTypes);

TYPED_TEST(Integers, WrapModuloTheirBitsAndDivideTowardsZero) {
  for (const ReduceOp op : all_reduce_ops()) {
    for (const std::size_t sources : kSources) {
      Reduction reduction{.type = this->type(), .op = op, .scale = {}};
      if (op == ReduceOp::kAvg) reduction.divisor = static_cast<std::uint32_t>(sources + 1);
      if (op == ReduceOp::kPreMulSum) {
        reduction.scaled_source = static_cast<std::ptrdiff_t>(sources - 1);
        reduction.scale.integer = -123456789012345;
      }
      for_each_element(reduction, sources, 7 + sources, [&](auto from, const std::byte* result, std::size_t i) {
        ASSERT_EQ(element<TypeParam>(result, i), this->expected(reduction, from, i));
      });
    }
  }
}

// --- floats ------------------------------------------------------------

TEST(Float32, EveryStepOfASumOrProductIsTheExactOneRoundedOnce) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
    for (const std::size_t sources : kSources) {
      const Reduction reduction{.type = DataType::kFloat32, .op = op, .scale = {}};
      for_each_element(reduction, sources, 11 + sources, [&](auto from, const std::byte* result, std::size_t i) {
        float expected = element<float>(from[0], i);
        for (std::size_t source = 1; source < sources; ++source) {
          const auto a = static_cast<double>(expected);
          const auto b = static_cast<double>(element<float>(from[source], i));
          // The double has 53 bits, which is enough that rounding to double first does not change the result.
          expected = static_cast<float>(op == ReduceOp::kSum ? a + b : a * b);
        }
        ASSERT_EQ(element<float>(result, i), expected);
      });
    }
  }
}

TEST(Float32, AnAverageIsDividedAndAFactorAppliedWithOneRoundingEach) {
  const Reduction average{.type = DataType::kFloat32, .op = ReduceOp::kAvg, .scale = {}, .divisor = 3};
  for_each_element(average, 2, 3, [&](auto from, const std::byte* result, std::size_t i) {
    const float sum = element<float>(from[0], i) + element<float>(from[1], i);
    ASSERT_EQ(element<float>(result, i), static_cast<float>(static_cast<double>(sum) / 3.0));
  });
  const Reduction scaled{
      .type = DataType::kFloat32, .op = ReduceOp::kPreMulSum, .scaled_source = 1, .scale = {.real = 0.1, .integer = 1}};
  for_each_element(scaled, 2, 4, [&](auto from, const std::byte* result, std::size_t i) {
    const double product = static_cast<double>(element<float>(from[1], i)) * static_cast<double>(0.1f);
    const double sum =
        static_cast<double>(element<float>(from[0], i)) + static_cast<double>(static_cast<float>(product));
    ASSERT_EQ(element<float>(result, i), static_cast<float>(sum));
  });
}

TEST(Float64, SumsAndProductsStayWithinARoundingPerStep) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
    for (const std::size_t sources : kSources) {
      const Reduction reduction{.type = DataType::kFloat64, .op = op, .scale = {}};
      for_each_element(reduction, sources, 17 + sources, [&](auto from, const std::byte* result, std::size_t i) {
        long double exact = op == ReduceOp::kSum ? 0 : 1;
        long double magnitude = exact;
        for (const std::byte* source : from) {
          const long double operand = element<double>(source, i);
          exact = op == ReduceOp::kSum ? exact + operand : exact * operand;
          magnitude = op == ReduceOp::kSum ? magnitude + std::fabs(operand) : magnitude * std::fabs(operand);
        }
        const long double bound = static_cast<long double>(sources) * 0x1p-53L * magnitude;
        ASSERT_LE(std::fabs(static_cast<long double>(element<double>(result, i)) - exact), bound);
      });
    }
  }
}

class HalfSums : public ::testing::TestWithParam<DataType> {};

// The allowed error is half a unit in the last place of the result, for the single rounding at the end, plus 2^-24 of
// the sum of the magnitudes for each addition in float32 before it.
TEST_P(HalfSums, RoundOnceHoweverManySources) {
  const testing::Format format = GetParam() == DataType::kFloat16 ? testing::kFloat16Format : testing::kBfloat16Format;
  for (const std::size_t sources : kSources) {
    const Reduction reduction{.type = GetParam(), .op = ReduceOp::kSum, .scale = {}};
    for_each_element(reduction, sources, 23 + sources, [&](auto from, const std::byte* result, std::size_t i) {
      double exact = 0;
      double magnitude = 0;
      for (const std::byte* source : from) {
        const double operand = testing::decode(format, element<std::uint16_t>(source, i));
        exact += operand;
        magnitude += std::fabs(operand);
      }
      const double rounded = testing::decode(format, element<std::uint16_t>(result, i));
      const int exponent = std::max(rounded == 0 ? -1000 : std::ilogb(rounded), 1 - format.exponent_bias);
      const double half_unit = std::ldexp(0.5, exponent - format.fraction_bits);
      ASSERT_LE(std::fabs(rounded - exact), half_unit + static_cast<double>(sources) * 0x1p-24 * magnitude);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, HalfSums, ::testing::Values(DataType::kFloat16, DataType::kBfloat16),
                         [](const auto& instance) { return std::string(to_string(instance.param)); });

}  // namespace
}  // namespace tutti::kernels
