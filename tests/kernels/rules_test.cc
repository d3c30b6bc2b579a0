// Tests of the rules that reduce.h states. Each rule is checked bit by bit, on every target and with the reference.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "support.h"

namespace tutti::kernels {
namespace {

using Bits = std::vector<std::uint64_t>;

std::uint64_t reference_bits(const Reduction& reduction, const Bits& source_bits) {
  std::vector<const std::byte*> sources;
  for (const std::uint64_t& bits : source_bits) sources.push_back(reinterpret_cast<const std::byte*>(&bits));
  std::uint64_t result = 0;
  auto* destination = reinterpret_cast<std::byte*>(&result);
  reduce_reference(reduction, sources, std::span(&destination, 1), 1);
  return result;
}

// Checks that the reduction of one element from each source gives `expected`, with the reference and on every target.
void expect(const Reduction& reduction, const Bits& sources, std::uint64_t expected) {
  const ::testing::ScopedTrace trace(
      __FILE__, __LINE__, std::string(to_string(reduction.type)) + " " + std::string(to_string(reduction.op)));
  EXPECT_EQ(reference_bits(reduction, sources), expected) << "reference";
  testing::for_each_target(
      [&] { EXPECT_EQ(testing::reduce_bits(reduction, sources), expected) << std::hex << expected; });
}

// The encodings of the special values of a floating-point type.
struct Encoding {
  DataType type;
  std::uint64_t sign;
  std::uint64_t infinity;
  std::uint64_t quiet_bit;
  std::uint64_t one;

  std::uint64_t nan() const { return infinity | quiet_bit; }
};

void PrintTo(const Encoding& encoding, std::ostream* out) { *out << to_string(encoding.type); }

constexpr std::array kEncodings = {
    Encoding{DataType::kFloat16, 0x8000, 0x7C00, 0x0200, 0x3C00},
    Encoding{DataType::kBfloat16, 0x8000, 0x7F80, 0x0040, 0x3F80},
    Encoding{DataType::kFloat32, 0x8000'0000, 0x7F80'0000, 0x0040'0000, 0x3F80'0000},
    Encoding{DataType::kFloat64, 0x8000'0000'0000'0000, 0x7FF0'0000'0000'0000, 0x0008'0000'0000'0000,
             0x3FF0'0000'0000'0000},
};

class Floats : public ::testing::TestWithParam<Encoding> {
 protected:
  static const Encoding& e() { return GetParam(); }
  static Reduction op(ReduceOp op) { return {.type = GetParam().type, .op = op, .scale = {}}; }
};

TEST_P(Floats, ArithmeticGivesTheCanonicalNanWhicheverNansGoIn) {
  const std::uint64_t quiet = e().sign | e().nan() | 5;
  const std::uint64_t signalling = e().infinity | 3;
  for (const ReduceOp o : {ReduceOp::kSum, ReduceOp::kProd}) {
    expect(op(o), {quiet, e().one}, e().nan());
    expect(op(o), {e().one, quiet}, e().nan());
    expect(op(o), {signalling, quiet, signalling}, e().nan());
  }
  expect(op(ReduceOp::kSum), {e().infinity, e().sign | e().infinity}, e().nan());
  expect(op(ReduceOp::kProd), {e().infinity, 0}, e().nan());

  Reduction average = op(ReduceOp::kAvg);
  average.divisor = 2;
  expect(average, {quiet}, e().nan());
  for (const ReduceOp o : {ReduceOp::kSum, ReduceOp::kMin}) {  // a factor is arithmetic, even if a selection follows
    Reduction scaled = op(o);
    scaled.scaled_source = 0;
    scaled.scale.real = 0;
    expect(scaled, {e().sign | e().infinity}, e().nan());
    expect(scaled, {signalling, e().one}, e().nan());
  }
}

TEST_P(Floats, SelectionKeepsTheFirstNanMadeQuiet) {
  const std::uint64_t first = e().sign | e().infinity | 3;
  const std::uint64_t second = e().nan() | 5;
  for (const ReduceOp o : {ReduceOp::kMin, ReduceOp::kMax}) {
    expect(op(o), {first, e().one}, first | e().quiet_bit);
    expect(op(o), {e().one, first}, first | e().quiet_bit);
    expect(op(o), {e().one, first, second}, first | e().quiet_bit);
    expect(op(o), {second, e().infinity, first}, second);
  }
}

TEST_P(Floats, SelectionKeepsTheFirstOfEqualZeros) {
  for (const ReduceOp o : {ReduceOp::kMin, ReduceOp::kMax}) {
    expect(op(o), {0, e().sign}, 0);
    expect(op(o), {e().sign, 0}, e().sign);
  }
  expect(op(ReduceOp::kSum), {e().sign, e().sign}, e().sign);
  expect(op(ReduceOp::kSum), {e().sign, 0}, 0);
}

TEST_P(Floats, SelectionOrdersInfinitiesAndSubnormals) {
  const std::uint64_t minus_infinity = e().sign | e().infinity;
  const Bits values = {e().one, e().infinity, 1, minus_infinity, e().sign | 1};
  expect(op(ReduceOp::kMax), values, e().infinity);
  expect(op(ReduceOp::kMin), values, minus_infinity);
  expect(op(ReduceOp::kMax), {0, 1}, 1);
  expect(op(ReduceOp::kMin), {0, e().sign | 1}, e().sign | 1);
}

TEST_P(Floats, SubnormalsAreAddedNotFlushed) {
  expect(op(ReduceOp::kSum), {1, 2, 4}, 7);
  expect(op(ReduceOp::kSum), {e().sign | 3, 2}, e().sign | 1);
  Reduction average = op(ReduceOp::kAvg);
  average.divisor = 2;
  expect(average, {4, 6}, 5);
  expect(average, {1, 0}, 0);  // half of the smallest subnormal is a tie and rounds to even
  expect(average, {1, 2}, 2);
}

TEST_P(Floats, SumsOverflowToInfinity) {
  const std::uint64_t largest = e().infinity - 1;
  expect(op(ReduceOp::kSum), {largest, largest}, e().infinity);
  expect(op(ReduceOp::kSum), {e().sign | largest, e().sign | largest}, e().sign | e().infinity);
  expect(op(ReduceOp::kSum), {largest, 1}, largest);
}

TEST_P(Floats, OneSourceWithoutFactorOrDivisorIsACopyOfTheBits) {
  for (const ReduceOp o : all_reduce_ops()) {
    for (const std::uint64_t bits : {e().infinity | 1, e().sign | e().nan() | 5, e().sign, e().one}) {
      expect(op(o), {bits}, bits);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Floats, ::testing::ValuesIn(kEncodings),
                         [](const auto& instance) { return std::string(to_string(instance.param.type)); });

std::uint64_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(Float16, RoundsOnceForAllSources) {
  const Reduction sum{.type = DataType::kFloat16, .op = ReduceOp::kSum, .scale = {}};
  const std::uint64_t two_k = testing::round_to(testing::kFloat16Format, 2048);
  expect(sum, {two_k, 0x3C00, 0x3C00}, testing::round_to(testing::kFloat16Format, 2050));
  expect(sum, {two_k, 0x3C00}, two_k);                                            // a tie rounds to even
  expect(sum, {0x7BFF, testing::round_to(testing::kFloat16Format, 15)}, 0x7BFF);  // 65519 rounds to 65504
  expect(sum, {0x7BFF, testing::round_to(testing::kFloat16Format, 16)}, 0x7C00);  // 65520 rounds to infinity
  expect(sum, {0x7BFF, 0x7BFF, 0xFBFF}, 0x7BFF);  // an intermediate sum may exceed the range
}

TEST(Float32, AFactorIsRoundedBeforeItIsAdded) {
  // The square of x is 1 + 2^-11 + 2^-24. Rounding drops the last term, but a fused multiply-add would keep it.
  const float x = 1 + 0x1p-12f;
  const Reduction scaled{.type = DataType::kFloat32,
                         .op = ReduceOp::kPreMulSum,
                         .scaled_source = 1,
                         .scale = {.real = static_cast<double>(x), .integer = 1}};
  expect(scaled, {bits_of(-1 - 0x1p-11f), bits_of(x)}, bits_of(0.0f));
}

TEST(Float32, TheFactorIsRoundedToFloat32First) {
  const Reduction scaled{.type = DataType::kFloat32,
                         .op = ReduceOp::kPreMulSum,
                         .scaled_source = 0,
                         .scale = {.real = 1 + 0x1p-30, .integer = 1}};
  expect(scaled, {bits_of(1e30f)}, bits_of(1e30f));
}

TEST(Float32, AddsFromLeftToRight) {
  const Reduction sum{.type = DataType::kFloat32, .op = ReduceOp::kSum, .scale = {}};
  expect(sum, {bits_of(1e30f), bits_of(-1e30f), bits_of(1.0f)}, bits_of(1.0f));
  expect(sum, {bits_of(1e30f), bits_of(1.0f), bits_of(-1e30f)}, bits_of(0.0f));
}

TEST(Integer, AveragesTruncateTowardsZeroAfterTheWrappedSum) {
  const auto average = [](DataType type, std::uint32_t divisor) {
    return Reduction{.type = type, .op = ReduceOp::kAvg, .scale = {}, .divisor = divisor};
  };
  const auto byte = [](int value) { return std::uint64_t{static_cast<std::uint8_t>(value)}; };
  expect(average(DataType::kInt8, 2), {byte(-7), byte(0)}, byte(-3));
  expect(average(DataType::kInt8, 2), {byte(100), byte(100)}, byte(-28));  // 200 wraps to -56
  expect(average(DataType::kInt8, 300), {byte(-128), byte(0)}, byte(0));   // a divisor outside of the type's range
  expect(average(DataType::kUint8, 2), {byte(200), byte(100)}, byte(22));  // 300 wraps to 44
  expect(average(DataType::kInt32, 3), {0x8000'0000u, 0}, std::uint32_t(-715827882));
  expect(average(DataType::kUint32, 0xFFFFFFFFu), {0xFFFFFFFFu, 0}, 1);
  expect(average(DataType::kInt64, 2), {static_cast<std::uint64_t>(-5), 0}, static_cast<std::uint64_t>(-2));
  expect(average(DataType::kUint64, 2), {static_cast<std::uint64_t>(-5), 0}, 0x7FFF'FFFF'FFFF'FFFDu);
}

TEST(Integer, FactorsAreTakenModuloTheType) {
  const Reduction scaled{.type = DataType::kUint8,
                         .op = ReduceOp::kPreMulSum,
                         .scaled_source = 1,
                         .scale = {.real = 1, .integer = 0x1'0000'0003}};
  expect(scaled, {1, 100}, (1 + 300) % 256);
}

TEST(ReduceDeathTest, RefusesWhatItsContractExcludes) {
  alignas(8) std::byte memory[16] = {};
  std::byte* const destination = memory;
  std::byte* const odd = memory + 1;
  const std::byte* const source = memory + 8;
  const std::byte* const nothing = nullptr;
  const std::span to(&destination, 1);
  const std::span from(&source, 1);
  const Reduction sum{.type = DataType::kFloat32, .op = ReduceOp::kSum, .scale = {}};
  const auto with = [&](auto change) {
    Reduction changed = sum;
    change(changed);
    return changed;
  };
  EXPECT_DEATH(kernels::reduce(sum, {}, to, 1), "sources");
  EXPECT_DEATH(kernels::reduce(sum, from, {}, 1), "destinations");
  EXPECT_DEATH(kernels::reduce(sum, std::span(&nothing, 1), to, 1), "nullptr");
  EXPECT_DEATH(kernels::reduce(sum, from, std::span(&odd, 1), 1), "not aligned");
  EXPECT_DEATH(kernels::reduce(with([](Reduction& r) { r.divisor = 0; }), from, to, 1), "divisor");
  EXPECT_DEATH(kernels::reduce(with([](Reduction& r) { r.scaled_source = 1; }), from, to, 1), "source 1 of 1");
  EXPECT_DEATH(kernels::reduce(with([](Reduction& r) { r.type = static_cast<DataType>(12); }), from, to, 1),
               "is_valid");
  EXPECT_DEATH(kernels::reduce(with([](Reduction& r) { r.op = static_cast<ReduceOp>(6); }), from, to, 1), "is_valid");
  const std::vector<const std::byte*> too_many(kMaxSources + 1, source);
  EXPECT_DEATH(kernels::reduce(sum, too_many, to, 1), "1025 sources");
}

}  // namespace
}  // namespace tutti::kernels
