// The conformance suite: encoding of elements, expected results, and the execution of one case.
#include "conformance/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

namespace tutti::test {
namespace {

constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};

template <class T>
void put_as(std::byte* at, std::int64_t value) {
  const T converted = static_cast<T>(value);
  std::memcpy(at, &converted, sizeof(converted));
}

template <class T>
double get_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return static_cast<double>(value);
}

// A floating-point type that C++ has no built-in type for: 1 sign bit, the exponent, the fraction.
struct SmallFloat {
  int fraction_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

std::optional<SmallFloat> small_float(DataType type) {
  switch (type) {
    case DataType::kFloat16: return SmallFloat{10, 5};
    case DataType::kBfloat16: return SmallFloat{7, 8};
    case DataType::kFloat8E4M3: return SmallFloat{3, 4};
    case DataType::kFloat8E5M2: return SmallFloat{2, 5};
    default: return std::nullopt;
  }
}

// Encodes a small whole number: computes the exponent and the upper fraction bits directly.
std::uint16_t encoded(const SmallFloat& format, std::int64_t value) {
  if (value == 0) return 0;
  const int exponent = std::bit_width(static_cast<std::uint64_t>(value)) - 1;
  const std::int64_t fraction = (value << format.fraction_bits >> exponent) - (std::int64_t{1} << format.fraction_bits);
  return static_cast<std::uint16_t>((exponent + format.bias()) << format.fraction_bits | fraction);
}

double decoded(const SmallFloat& format, std::uint16_t bits) {
  const int one = 1 << format.fraction_bits;
  const int exponent = bits >> format.fraction_bits & ((1 << format.exponent_bits) - 1);
  const int fraction = bits & (one - 1);
  const double size = std::ldexp(exponent == 0 ? fraction : one + fraction,
                                 std::max(exponent, 1) - format.bias() - format.fraction_bits);
  return (bits >> (format.fraction_bits + format.exponent_bits)) != 0 ? -size : size;
}

}  // namespace

void put(std::byte* at, DataType type, std::int64_t value) {
  if (const auto format = small_float(type)) {
    const std::uint16_t bits = encoded(*format, value);
    std::memcpy(at, &bits, size_of(type));  // assumes little-endian byte order
    return;
  }
  switch (type) {
    case DataType::kInt8: return put_as<std::int8_t>(at, value);
    case DataType::kUint8: return put_as<std::uint8_t>(at, value);
    case DataType::kInt32: return put_as<std::int32_t>(at, value);
    case DataType::kUint32: return put_as<std::uint32_t>(at, value);
    case DataType::kInt64: return put_as<std::int64_t>(at, value);
    case DataType::kUint64: return put_as<std::uint64_t>(at, value);
    case DataType::kFloat32: return put_as<float>(at, value);
    case DataType::kFloat64: return put_as<double>(at, value);
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2: break;
  }
}

double get(const std::byte* at, DataType type) {
  if (const auto format = small_float(type)) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, size_of(type));
    return decoded(*format, bits);
  }
  switch (type) {
    case DataType::kInt8: return get_as<std::int8_t>(at);
    case DataType::kUint8: return get_as<std::uint8_t>(at);
    case DataType::kInt32: return get_as<std::int32_t>(at);
    case DataType::kUint32: return get_as<std::uint32_t>(at);
    case DataType::kInt64: return get_as<std::int64_t>(at);
    case DataType::kUint64: return get_as<std::uint64_t>(at);
    case DataType::kFloat32: return get_as<float>(at);
    case DataType::kFloat64: return get_as<double>(at);
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Elements::Elements(std::size_t count, DataType type)
    : count_(count), type_(type), bytes_(count * size_of(type) + kGuardBytes, kGuard) {}

Elements::~Elements() {
  const auto guard = bytes_.end() - kGuardBytes;
  EXPECT_TRUE(std::all_of(guard, bytes_.end(), [](std::byte b) { return b == kGuard; })) << "written past the end";
}

double reduced(std::int32_t ranks, std::size_t i, DataType type, ReduceOp op) {
  double value = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const auto x = static_cast<double>(given(rank, i, type, op));
    if (rank == 0 && op != ReduceOp::kPreMulSum) {
      value = x;
      continue;
    }
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg: value += x; break;
      case ReduceOp::kProd: value *= x; break;
      case ReduceOp::kMax: value = std::max(value, x); break;
      case ReduceOp::kMin: value = std::min(value, x); break;
      case ReduceOp::kPreMulSum: value += x * static_cast<double>(factor_of(rank)); break;
    }
  }
  if (op != ReduceOp::kAvg) return value;
  value /= ranks;
  if (!is_floating(type)) return std::trunc(value);
  // The result is rounded as the library does: added and divided in float32 (or float64 for float64), then rounded
  // once to the type.
  if (type == DataType::kFloat64) return value;
  float narrow = static_cast<float>(value);
  if (type == DataType::kFloat32) return narrow;
  const int kept = small_float(type)->fraction_bits + 1;  // number of bits of the significand
  int exponent = 0;
  const double mantissa = std::frexp(narrow, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, kept)), exponent - kept);
}

std::string to_string(const Case& each) {
  return fmt::format("{} {} x {}, {}, root {}, {}, {}, {}", tutti::to_string(each.kind), each.count,
                     tutti::to_string(each.type), tutti::to_string(each.op), each.root,
                     each.in_place ? "in place" : "out of place", each.registered ? "registered" : "private",
                     tutti::to_string(each.algorithm));
}

CaseShape shape_of(const Case& each, std::int32_t rank, std::int32_t ranks) {
  const auto p = static_cast<std::size_t>(ranks);
  const auto r = static_cast<std::size_t>(rank);
  const CollectiveRow& row = row_of(each.kind);
  if (!row.has_data) return {0, 0, 0, 0};
  const bool root = rank == each.root;
  const bool has_input = root || row.root != RootHas::kTheInput;
  const bool has_output = root || row.root != RootHas::kTheOutput;
  const bool all_in = row.input == BlockSet::kAll;
  const bool all_out = row.output == BlockSet::kAll;
  const bool part = has_input && has_output;  // the smaller buffer is this rank's block of the larger one
  return {.in = !has_input ? 0
                : all_in   ? p
                           : 1,
          .out = !has_output ? 0
                 : all_out   ? p
                             : 1,
          .in_offset = part && all_out && !all_in ? r : 0,
          .out_offset = part && all_in && !all_out ? r : 0};
}

double expected(const Case& each, std::int32_t rank, std::int32_t ranks, std::size_t block, std::size_t i) {
  const CollectiveRow& row = row_of(each.kind);
  // The element's index in the input of each rank that contributes to it.
  const std::size_t at = (row.input == BlockSet::kAll ? static_cast<std::size_t>(rank) * each.count : 0) + i;
  if (row.reduces) return reduced(ranks, at, each.type, each.op);
  const std::size_t owner = first_block(row.output, static_cast<std::uint32_t>(rank)) + block;
  const std::int32_t from = row.root == RootHas::kTheInput ? each.root : static_cast<std::int32_t>(owner) % ranks;
  return static_cast<double>(given(from, at, each.type));
}

namespace {

// A buffer in ordinary or in registered memory.
class Buffer {
 public:
  Buffer(Communicator& rank, std::size_t count, const Case& each) : plain_(count, each.type) {
    if (!each.registered || count == 0) return;
    auto made = rank.allocate(count * size_of(each.type));
    EXPECT_TRUE(made.ok()) << tutti::to_string(made.error());
    if (made.ok()) memory_ = std::move(*made);
  }
  std::byte* data() { return memory_.data() != nullptr ? memory_.data() : plain_.data(); }

 private:
  Elements plain_;
  Memory memory_;
};

}  // namespace

void check_output(const Communicator& rank, const Case& each, const std::byte* output, std::size_t blocks) {
  for (std::size_t i = 0; i < blocks * each.count; ++i) {
    const double want = expected(each, rank.rank(), rank.size(), i / each.count, i % each.count);
    const double got = get(output + i * size_of(each.type), each.type);
    if (got == want) continue;
    ADD_FAILURE() << to_string(each) << ", " << rank.size() << " ranks: rank " << rank.rank() << " element " << i
                  << " is " << got << ", not " << want;
    return;
  }
}

void run_case(Communicator& rank, const Case& each) {
  const CaseShape shape = shape_of(each, rank.rank(), rank.size());
  const std::size_t width = size_of(each.type);
  const std::size_t block = each.count * width;
  const bool in_place = each.in_place && shape.in > 0 && shape.out > 0;
  Buffer first(rank, std::max(shape.in, in_place ? shape.out : 0) * each.count, each);
  Buffer second(rank, in_place ? 0 : shape.out * each.count, each);
  std::byte* const input = first.data() + (in_place ? shape.in_offset * block : 0);
  std::byte* const output = in_place ? first.data() + shape.out_offset * block : second.data();
  for (std::size_t i = 0; i < shape.in * each.count; ++i)
    put(input + i * width, each.type, given(rank.rank(), i, each.type, each.op));
  CallOptions options;
  options.algorithm = each.algorithm;
  options.scale = {.real = static_cast<double>(factor_of(rank.rank())), .integer = factor_of(rank.rank())};
  const Status status = rank.run({.kind = each.kind,
                                  .input = shape.in > 0 ? input : nullptr,
                                  .output = shape.out > 0 ? output : nullptr,
                                  .count = each.count,
                                  .type = each.type,
                                  .op = each.op,
                                  .root = each.root},
                                 options);
  ASSERT_TRUE(status.ok()) << to_string(each) << ": " << tutti::to_string(status.error());
  check_output(rank, each, output, shape.out);
}

}  // namespace tutti::test
