// Tests of the check data of `tutti perf`. The expected values are calculated independently of tools/perf/data.cc:
// with long double, with plain wrapping integers, and with rounding after every single step in several orders.
#include "tools/perf/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/reduce.h"

namespace tutti::tool {
namespace {

constexpr std::uint64_t kCount = 1531;  // not a multiple of a block

std::vector<std::byte> input_of(const DataPattern& pattern, DataType type, std::int32_t rank,
                                std::uint64_t count = kCount) {
  std::vector<std::byte> data(count * size_of(type));
  pattern.fill_input(rank, 0, count, data.data());
  return data;
}

// Reduces the inputs of the ranks one after the other in the given order, and rounds to the type after each of them.
// No algorithm rounds more often.
std::vector<std::byte> reduce_stepwise(const DataPattern& pattern, DataType type, ReduceOp op,
                                       const std::vector<std::int32_t>& order) {
  const auto ranks = static_cast<std::uint32_t>(order.size());
  const auto scaled = [&](std::int32_t rank) {
    std::vector<std::byte> data = input_of(pattern, type, rank);
    const std::byte* source = data.data();
    std::byte* destination = data.data();
    if (op == ReduceOp::kPreMulSum) {
      kernels::reduce_reference(
          {.type = type, .op = op, .scaled_source = 0, .scale = pattern.scale(rank), .divisor = 1}, {&source, 1},
          {&destination, 1}, kCount);
    }
    return data;
  };
  const ReduceOp step = op == ReduceOp::kAvg || op == ReduceOp::kPreMulSum ? ReduceOp::kSum : op;
  std::vector<std::byte> total = scaled(order[0]);
  std::byte* destination = total.data();
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::vector<std::byte> next = scaled(order[i]);
    const std::byte* sources[] = {total.data(), next.data()};
    const std::uint32_t divisor = op == ReduceOp::kAvg && i + 1 == order.size() ? ranks : 1;
    kernels::reduce_reference({.type = type, .op = step, .scaled_source = -1, .scale = {}, .divisor = divisor}, sources,
                              {&destination, 1}, kCount);
  }
  return total;
}

class EveryTypeAndOp : public testing::TestWithParam<std::tuple<DataType, ReduceOp>> {};

TEST_P(EveryTypeAndOp, ResultIsTheSameInEveryOrderWithRoundingAfterEveryStep) {
  const auto [type, op] = GetParam();
  std::mt19937 random(7);
  for (std::int32_t ranks : {1, 2, 3, 4, 7, 16, 33, 300}) {
    const DataPattern pattern(type, op, ranks);
    std::vector<std::int32_t> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    for (int trial = 0; trial < 3; ++trial) {
      EXPECT_EQ(pattern.count_wrong_result(0, kCount, reduce_stepwise(pattern, type, op, order).data()), 0u)
          << ranks << " ranks, trial " << trial << ", seed 7";
      std::shuffle(order.begin(), order.end(), random);
    }
  }
}

TEST_P(EveryTypeAndOp, MissingOrDoubledRankShows) {
  const auto [type, op] = GetParam();
  const bool idempotent = op == ReduceOp::kMin || op == ReduceOp::kMax;
  // float8 has few values, and few ranks have an input other than 0
  const bool float8 = is_floating(type) && size_of(type) == 1;
  for (std::int32_t ranks : {2, 3, 4, 7}) {
    const DataPattern pattern(type, op, ranks);
    for (std::int32_t odd_one = 0; odd_one < ranks; ++odd_one) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(ranks));
      std::iota(order.begin(), order.end(), 0);
      // this rank's input is missing, and the next rank's input occurs twice
      order[static_cast<std::size_t>(odd_one)] = (odd_one + 1) % ranks;
      const std::uint64_t wrong =
          pattern.count_wrong_result(0, kCount, reduce_stepwise(pattern, type, op, order).data());
      EXPECT_GT(wrong, idempotent ? kCount / 16
                       : float8   ? kCount / 8
                                  : kCount / 4)
          << ranks << " ranks, " << odd_one << " missing";
    }
  }
}

TEST_P(EveryTypeAndOp, NeighbouringElementsAndRanksDiffer) {
  const auto [type, op] = GetParam();
  const DataPattern pattern(type, op, 4);
  const std::vector<std::byte> first = input_of(pattern, type, 0);
  const std::vector<std::byte> second = input_of(pattern, type, 1);
  const std::size_t bytes = size_of(type);
  std::uint64_t same_rank = 0;
  std::uint64_t same_index = 0;
  for (std::size_t i = 0; i + 1 < kCount; ++i) {
    if (std::memcmp(&first[i * bytes], &first[(i + 1) * bytes], bytes) == 0) ++same_rank;
    if (std::memcmp(&first[i * bytes], &second[i * bytes], bytes) == 0) ++same_index;
  }
  // A type with three or four significant bits leaves few values for four ranks. For a sum these are often only -1
  // and 0.
  const std::uint64_t most = is_floating(type) && bytes == 1 ? kCount * 3 / 4 : kCount / 4;
  EXPECT_LT(same_rank, most);
  EXPECT_LT(same_index, most);
}

TEST_P(EveryTypeAndOp, OneFlippedBitIsOneWrongElement) {
  const auto [type, op] = GetParam();
  const DataPattern pattern(type, op, 3);
  std::vector<std::byte> result = reduce_stepwise(pattern, type, op, {0, 1, 2});
  std::vector<std::byte> input = input_of(pattern, type, 2);
  EXPECT_EQ(pattern.count_wrong_input(2, 0, kCount, input.data()), 0u);
  for (std::uint64_t element : {std::uint64_t{0}, std::uint64_t{511}, std::uint64_t{512}, kCount - 1}) {
    result[element * size_of(type)] ^= std::byte{1};
    input[element * size_of(type)] ^= std::byte{1};
  }
  EXPECT_EQ(pattern.count_wrong_result(0, kCount, result.data()), 4u);
  EXPECT_EQ(pattern.count_wrong_input(2, 0, kCount, input.data()), 4u);
}

TEST_P(EveryTypeAndOp, PartOfAnInputOrResultIsThatPartOfTheWhole) {
  const auto [type, op] = GetParam();
  constexpr std::uint64_t kFirst = 517;  // in the middle of a block
  const DataPattern pattern(type, op, 3);
  const std::vector<std::byte> input = input_of(pattern, type, 1);
  std::vector<std::byte> part((kCount - kFirst) * size_of(type));
  pattern.fill_input(1, kFirst, kCount - kFirst, part.data());
  EXPECT_EQ(std::memcmp(part.data(), &input[kFirst * size_of(type)], part.size()), 0);
  EXPECT_EQ(pattern.count_wrong_input(1, kFirst, kCount - kFirst, part.data()), 0u);
  EXPECT_GT(pattern.count_wrong_input(1, kFirst + 1, kCount - kFirst, part.data()), kCount / 4)
      << "the data is shifted by one element";
  const std::vector<std::byte> result = reduce_stepwise(pattern, type, op, {0, 1, 2});
  EXPECT_EQ(pattern.count_wrong_result(kFirst, kCount - kFirst, &result[kFirst * size_of(type)]), 0u);
}

INSTANTIATE_TEST_SUITE_P(PerfData, EveryTypeAndOp,
                         testing::Combine(testing::ValuesIn(all_data_types().begin(), all_data_types().end()),
                                          testing::ValuesIn(all_reduce_ops().begin(), all_reduce_ops().end())),
                         [](const auto& parameters) {
                           return std::string(to_string(std::get<0>(parameters.param))) + "_" +
                                  std::string(to_string(std::get<1>(parameters.param)));
                         });

template <class Element>
std::vector<Element> elements(const std::vector<std::byte>& bytes) {
  std::vector<Element> values(bytes.size() / sizeof(Element));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(PerfData, ExpectedFloatAverageIsOneCorrectlyRoundedDivision) {
  const DataPattern pattern(DataType::kFloat32, ReduceOp::kAvg, 7);
  std::vector<long double> sums(kCount, 0);
  for (std::int32_t rank = 0; rank < 7; ++rank) {
    const std::vector<float> input = elements<float>(input_of(pattern, DataType::kFloat32, rank));
    for (std::size_t i = 0; i < kCount; ++i) sums[i] += input[i];
  }
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    // Rounded to 64 bits and then to 24. Double rounding does no harm, because no value is close to a tie.
    expected[i] = static_cast<float>(sums[i] / 7);
  EXPECT_EQ(pattern.count_wrong_result(0, kCount, std::as_bytes(std::span(expected)).data()), 0u);
}

TEST(PerfData, ExpectedIntegersWrapAndAveragesTruncateTowardsZero) {
  const DataPattern pattern(DataType::kInt8, ReduceOp::kAvg, 5);
  std::vector<int> sums(kCount, 0);
  bool wrapped = false;
  bool truncated_negative = false;
  for (std::int32_t rank = 0; rank < 5; ++rank) {
    const std::vector<std::int8_t> input = elements<std::int8_t>(input_of(pattern, DataType::kInt8, rank));
    for (std::size_t i = 0; i < kCount; ++i) sums[i] += input[i];
  }
  std::vector<std::int8_t> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const int sum = ((sums[i] + 128) % 256 + 256) % 256 - 128;
    wrapped |= sum != sums[i];
    truncated_negative |= sum < 0 && sum % 5 != 0;
    expected[i] = static_cast<std::int8_t>(sum / 5);
  }
  EXPECT_TRUE(wrapped && truncated_negative);
  EXPECT_EQ(pattern.count_wrong_result(0, kCount, std::as_bytes(std::span(expected)).data()), 0u);
}

float float16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) return std::numeric_limits<float>::infinity();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(PerfData, Float16KeepsEveryValueAndRoundsBetweenThemToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    ASSERT_EQ(to_float16_bits(float16_value(low)), low);
    ASSERT_EQ(to_float16_bits(-float16_value(low)), low | 0x8000);
    if (high == 0x7c00) break;
    const float middle = (float16_value(low) + float16_value(high)) / 2;  // exact in float32
    ASSERT_EQ(to_float16_bits(middle), low % 2 == 0 ? low : high);
    ASSERT_EQ(to_float16_bits(std::nextafter(middle, 0.0f)), low);
    ASSERT_EQ(to_float16_bits(std::nextafter(middle, 1e9f)), high);
  }
  EXPECT_EQ(to_float16_bits(65519.0f), 0x7bff);
  EXPECT_EQ(to_float16_bits(65520.0f), 0x7c00);
}

TEST(PerfData, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16_bits(1.0f), 0x3f80);
  EXPECT_EQ(to_bfloat16_bits(1.0f + 1.0f / 256), 0x3f80);  // a tie, rounded down to even
  EXPECT_EQ(to_bfloat16_bits(1.0f + 3.0f / 256), 0x3f82);  // a tie, rounded up to even
  EXPECT_EQ(to_bfloat16_bits(1.0f + 1.0f / 255), 0x3f81);  // above the tie
  EXPECT_EQ(to_bfloat16_bits(-257.0f), 0xc380);
}

TEST(PerfData, Float8KeepsEveryValueAndRoundsBetweenThemToNearestEven) {
  struct Type {
    DataType type;
    int fraction_bits, bias, largest;
  };
  for (const Type& of : {Type{DataType::kFloat8E4M3, 3, 7, 0x7e}, Type{DataType::kFloat8E5M2, 2, 15, 0x7b}}) {
    const auto value = [&](int bits) {
      const int one = 1 << of.fraction_bits;
      const int exponent = bits / one;
      return static_cast<float>(
          std::ldexp(exponent == 0 ? bits : one + bits % one, std::max(exponent, 1) - of.bias - of.fraction_bits));
    };
    for (int low = 0; low <= of.largest; ++low) {
      ASSERT_EQ(to_float8_bits(of.type, value(low)), low);
      ASSERT_EQ(to_float8_bits(of.type, -value(low)), low | 0x80);
      if (low == of.largest) break;
      const float middle = (value(low) + value(low + 1)) / 2;
      ASSERT_EQ(to_float8_bits(of.type, middle), low % 2 == 0 ? low : low + 1);
      ASSERT_EQ(to_float8_bits(of.type, std::nextafter(middle, 0.0f)), low);
      ASSERT_EQ(to_float8_bits(of.type, std::nextafter(middle, 1e9f)), low + 1);
    }
    EXPECT_EQ(to_float8_bits(of.type, 2 * value(of.largest)), of.largest);
    EXPECT_EQ(to_float8_bits(of.type, -1e30f), of.largest | 0x80);
  }
}

}  // namespace
}  // namespace tutti::tool
