#include "tools/perf/data.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/mix_bits.h"

namespace tutti::tool {
namespace {

// For products of floating-point types: at each index, at most this many ranks have a factor other than 1.
constexpr int kMaxFactors = 8;
// Largest magnitude of a factor of kPreMulSum for floating-point types.
constexpr std::int32_t kMaxScale = 3;

// A hash of the value: one step of the random-number generator SplitMix64 (base/mix_bits.h).
constexpr std::uint64_t mix(std::uint64_t value) { return mix_bits(value + 0x9e3779b97f4a7c15u); }

// Returns the largest number b such that the floating-point type represents all integers from 0 to 2^b exactly. For
// integer types the result has no meaning and no effect.
int significand_bits(DataType type) {
  switch (type) {
    case DataType::kFloat8E5M2: return 3;
    case DataType::kFloat8E4M3: return 4;
    case DataType::kFloat16: return 11;
    case DataType::kBfloat16: return 8;
    case DataType::kFloat32: return 24;
    default: return 53;
  }
}

std::int32_t float_scale(std::int32_t rank) {
  const std::int32_t magnitude = 1 + rank % kMaxScale;
  return rank % 2 == 0 ? magnitude : -magnitude;
}

using Block = std::array<std::uint64_t, DataPattern::kBlock>;

template <class Integer>
void sign_extend_as(Block& numbers) {
  for (std::uint64_t& number : numbers) {
    number = static_cast<std::uint64_t>(std::int64_t{static_cast<Integer>(number)});
  }
}

// Converts each number to the integer type, which drops its high bits, and back to 64 bits, with the sign of the type,
// so that the number can be compared and divided.
void sign_extend(DataType type, Block& numbers) {
  switch (type) {
    case DataType::kInt8: return sign_extend_as<std::int8_t>(numbers);
    case DataType::kUint8: return sign_extend_as<std::uint8_t>(numbers);
    case DataType::kInt32: return sign_extend_as<std::int32_t>(numbers);
    case DataType::kUint32: return sign_extend_as<std::uint32_t>(numbers);
    default: return;
  }
}

template <class Combine>
void combine(const Block& numbers, Block& totals, Combine two) {
  for (std::size_t i = 0; i < numbers.size(); ++i) totals[i] = two(totals[i], numbers[i]);
}

std::uint64_t larger(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) ? b : a;
}
std::uint64_t smaller(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::int64_t>(b) < static_cast<std::int64_t>(a) ? b : a;
}

bool is_unsigned(DataType type) {
  return type == DataType::kUint8 || type == DataType::kUint32 || type == DataType::kUint64;
}

// Computes totals[i] = op(totals[i], numbers[i]) for every i; kAvg and kPreMulSum add like kSum. `without_sign`: kMax
// and kMin compare the numbers as unsigned.
void accumulate(ReduceOp op, bool without_sign, const Block& numbers, Block& totals) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPreMulSum: return combine(numbers, totals, [](auto a, auto b) { return a + b; });
    case ReduceOp::kProd: return combine(numbers, totals, [](auto a, auto b) { return a * b; });
    case ReduceOp::kMax:
      if (without_sign) return combine(numbers, totals, [](auto a, auto b) { return std::max(a, b); });
      return combine(numbers, totals, [](auto a, auto b) { return larger(a, b); });
    case ReduceOp::kMin:
      if (without_sign) return combine(numbers, totals, [](auto a, auto b) { return std::min(a, b); });
      return combine(numbers, totals, [](auto a, auto b) { return smaller(a, b); });
  }
}

void store_low_bytes(std::uint64_t number, std::size_t bytes, std::byte* element) {
  switch (bytes) {  // the low bytes come first, because the machine is little endian
    case 1: std::memcpy(element, &number, 1); break;
    case 4: std::memcpy(element, &number, 4); break;
    default: std::memcpy(element, &number, 8); break;
  }
}

// The magnitude bits of the nearest value (ties to even) in a floating-point format with `fraction_bits` fraction bits
// and the exponent bias `bias`, as if its exponent had no upper limit. `magnitude` is the bits of a finite float32
// without its sign.
std::uint32_t rounded_magnitude(std::uint32_t magnitude, int fraction_bits, int bias) {
  // A value below the smallest normal one loses one more bit for each factor of 2 by which it is smaller.
  const int smallest_exponent = 1 - bias;
  const auto exponent = static_cast<int>(magnitude >> 23) - 127;
  const int dropped = 23 - fraction_bits + std::max(0, smallest_exponent - exponent);
  if (dropped > 24) return 0;  // less than half of the format's smallest subnormal value
  const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t half = 1u << (dropped - 1);
  const std::uint32_t kept = significand >> dropped;
  const std::uint32_t rounded = kept + ((significand & (2 * half - 1)) + (kept & 1u) > half ? 1u : 0u);
  const int above = std::max(0, exponent - smallest_exponent);
  return (static_cast<std::uint32_t>(above) << fraction_bits) + rounded;  // a carry raises the exponent
}

void store_float(DataType type, float value, std::byte* element) {
  if (type == DataType::kFloat32) {
    std::memcpy(element, &value, sizeof value);
  } else if (type == DataType::kFloat8E4M3 || type == DataType::kFloat8E5M2) {
    const std::uint8_t bits = to_float8_bits(type, value);
    std::memcpy(element, &bits, sizeof bits);
  } else {
    const std::uint16_t bits = type == DataType::kFloat16 ? to_float16_bits(value) : to_bfloat16_bits(value);
    std::memcpy(element, &bits, sizeof bits);
  }
}

}  // namespace

std::uint16_t to_bfloat16_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

std::uint16_t to_float16_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = std::min(rounded_magnitude(bits & 0x7fffffffu, 10, 15), 0x7c00u);  // at most infinity
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000u) | rounded);
}

std::uint8_t to_float8_bits(DataType type, float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t rounded = type == DataType::kFloat8E4M3 ? std::min(rounded_magnitude(magnitude, 3, 7), 0x7eu)
                                                              : std::min(rounded_magnitude(magnitude, 2, 15), 0x7bu);
  return static_cast<std::uint8_t>(((bits >> 24) & 0x80u) | rounded);
}

DataPattern::DataPattern(DataType type, ReduceOp op, std::int32_t ranks)
    : type_(type),
      op_(op),
      ranks_(ranks),
      element_bytes_(size_of(type)),
      floating_(is_floating(type)),
      contributors_(ranks) {
  TUTTI_ASSERT(is_valid(op) && ranks >= 1);
  const int bits = significand_bits(type);
  if (op == ReduceOp::kMax || op == ReduceOp::kMin) {
    value_bits_ = bits;
  } else if (op == ReduceOp::kProd) {
    contributors_ = std::min(ranks, kMaxFactors);
    // With value_bits_ 1 the factors are +-1 and +-2. The magnitude of a product of kMaxFactors of them is a power of 2
    // up to 256, which is exact even in float8.
    value_bits_ = std::max(1, bits / contributors_);
  } else {
    const std::uint64_t limit = (std::uint64_t{1} << bits) / (op == ReduceOp::kPreMulSum ? kMaxScale : 1);
    if (limit < static_cast<std::uint64_t>(ranks)) contributors_ = static_cast<std::int32_t>(limit);
    // The largest value_bits_ with contributors_ * 2^(value_bits_ - 1) <= limit, so that the magnitude of no sum
    // exceeds the limit.
    value_bits_ = std::bit_width(limit / static_cast<std::uint64_t>(contributors_));
  }
  if (!floating_) contributors_ = ranks;
  for (std::int32_t rank = 0; rank < ranks; ++rank) multipliers_.push_back(mix(~static_cast<std::uint64_t>(rank)) | 1u);
}

Scale DataPattern::scale(std::int32_t rank) const {
  if (op_ != ReduceOp::kPreMulSum) return {};
  return Scale{.real = static_cast<double>(float_scale(rank)),
               .integer = static_cast<std::int64_t>(mix(static_cast<std::uint64_t>(rank)))};
}

bool DataPattern::contributes(std::uint64_t index_hash, std::int32_t rank) const {
  const auto ranks = static_cast<std::uint64_t>(ranks_);
  return ((index_hash >> 40) + static_cast<std::uint64_t>(rank)) % ranks < static_cast<std::uint64_t>(contributors_);
}

// Computes the inputs of one rank as integers (two's complement), from the hashes of the elements' indices. The
// decisions about type and operation are made outside the loops, because checking should not take longer than the
// collective that is checked.
void DataPattern::make_numbers(const Block& hashes, std::int32_t rank, Block& numbers) const {
  const std::uint64_t multiplier = multipliers_[static_cast<std::size_t>(rank)];
  const int shift = 64 - value_bits_;
  if (!floating_) {
    const std::uint64_t odd =
        // Makes factors odd: a product of even numbers soon becomes 0 modulo 2^bits, and then a missing factor would
        // not be visible.
        op_ == ReduceOp::kProd ? 1 : 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::uint64_t random = hashes[i] * multiplier;
      // The high bits are mixed in, because the low bits of the product alone are similar for some ranks.
      numbers[i] = (random >> 32 ^ random) | odd;
    }
    sign_extend(type_, numbers);
  } else if (op_ == ReduceOp::kProd) {  // numbers from +-1 to +-2^value_bits_
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::uint64_t random = hashes[i] * multiplier;
      const std::uint64_t magnitude = 1 + (random << 1 >> shift);
      numbers[i] = (random >> 63) != 0 ? 0 - magnitude : magnitude;
    }
  } else {
    const std::uint64_t half = std::uint64_t{1} << (value_bits_ - 1);
    for (std::size_t i = 0; i < kBlock; ++i) numbers[i] = (hashes[i] * multiplier >> shift) - half;
  }
  if (contributors_ == ranks_) return;
  const std::uint64_t neutral = op_ == ReduceOp::kProd ? 1 : 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (!contributes(hashes[i], rank)) numbers[i] = neutral;
  }
}

void DataPattern::hash_indices(std::uint64_t first, Block& hashes) const {
  for (std::size_t i = 0; i < kBlock; ++i) hashes[i] = mix(first + i);
}

// Writes the first `count` numbers to `elements`, converted to the type.
void DataPattern::store_numbers(const Block& numbers, std::size_t count, std::byte* elements) const {
  if (!floating_) {
    for (std::size_t i = 0; i < count; ++i) store_low_bytes(numbers[i], element_bytes_, elements + i * element_bytes_);
  } else if (type_ == DataType::kFloat64) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<double>(static_cast<std::int64_t>(numbers[i]));
      std::memcpy(elements + i * sizeof value, &value, sizeof value);
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(static_cast<std::int64_t>(numbers[i]));
      store_float(type_, value, elements + i * element_bytes_);
    }
  }
}

// Stores the sums divided by the number of ranks. Sums of integer types are first wrapped to the type and then divided
// towards zero. Sums of floating-point types are divided once, in float32 (for float64 in float64), and then rounded to
// the type.
void DataPattern::store_averages(Block& sums, std::size_t count, std::byte* elements) const {
  if (!floating_) {
    sign_extend(type_, sums);
    for (std::uint64_t& sum : sums) {
      if (is_unsigned(type_))
        sum /= static_cast<std::uint64_t>(ranks_);
      else
        sum = static_cast<std::uint64_t>(static_cast<std::int64_t>(sum) / ranks_);
    }
    store_numbers(sums, count, elements);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto sum = static_cast<std::int64_t>(sums[i]);
    if (type_ == DataType::kFloat64) {
      const double average = static_cast<double>(sum) / static_cast<double>(ranks_);
      std::memcpy(elements + i * sizeof average, &average, sizeof average);
    } else {
      store_float(type_, static_cast<float>(sum) / static_cast<float>(ranks_), elements + i * element_bytes_);
    }
  }
}

void DataPattern::store_inputs(std::int32_t rank, std::uint64_t first, std::size_t count, std::byte* input) const {
  Block hashes;
  Block numbers;
  hash_indices(first, hashes);
  make_numbers(hashes, rank, numbers);
  store_numbers(numbers, count, input);
}

void DataPattern::store_results(std::uint64_t first, std::size_t count, std::byte* result) const {
  Block hashes;
  Block numbers;
  Block totals;
  hash_indices(first, hashes);
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    make_numbers(hashes, rank, numbers);
    if (op_ == ReduceOp::kPreMulSum) {
      const std::int64_t factor = floating_ ? float_scale(rank) : scale(rank).integer;
      for (std::uint64_t& number : numbers) number *= static_cast<std::uint64_t>(factor);
    }
    if (rank == 0)
      totals = numbers;
    else
      accumulate(op_, is_unsigned(type_), numbers, totals);
  }
  if (op_ == ReduceOp::kAvg)
    store_averages(totals, count, result);
  else
    store_numbers(totals, count, result);
}

std::uint64_t DataPattern::count_differences(const std::byte* left, const std::byte* right, std::size_t count) const {
  if (std::memcmp(left, right, count * element_bytes_) == 0) return 0;
  std::uint64_t differences = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(left + i * element_bytes_, right + i * element_bytes_, element_bytes_) != 0) ++differences;
  }
  return differences;
}

void DataPattern::fill_input(std::int32_t rank, std::uint64_t first, std::uint64_t count, std::byte* input) const {
  TUTTI_ASSERT(rank >= 0 && rank < ranks_);
  for (std::uint64_t done = 0; done < count; done += kBlock) {
    store_inputs(rank, first + done, std::min<std::uint64_t>(kBlock, count - done), input + done * element_bytes_);
  }
}

std::uint64_t DataPattern::count_wrong_input(std::int32_t rank, std::uint64_t first, std::uint64_t count,
                                             const std::byte* input) const {
  TUTTI_ASSERT(rank >= 0 && rank < ranks_);
  std::array<std::byte, sizeof(Block)> expected;
  std::uint64_t wrong = 0;
  for (std::uint64_t done = 0; done < count; done += kBlock) {
    const std::size_t block = std::min<std::uint64_t>(kBlock, count - done);
    store_inputs(rank, first + done, block, expected.data());
    wrong += count_differences(expected.data(), input + done * element_bytes_, block);
  }
  return wrong;
}

std::uint64_t DataPattern::count_wrong_result(std::uint64_t first, std::uint64_t count, const std::byte* result) const {
  std::array<std::byte, sizeof(Block)> expected;
  std::uint64_t wrong = 0;
  for (std::uint64_t done = 0; done < count; done += kBlock) {
    const std::size_t block = std::min<std::uint64_t>(kBlock, count - done);
    store_results(first + done, block, expected.data());
    wrong += count_differences(expected.data(), result + done * element_bytes_, block);
  }
  return wrong;
}

}  // namespace tutti::tool
