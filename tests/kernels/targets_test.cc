// Tests that every target gives the same bits as the reference, for every type, operation, number of sources and
// destinations, length and alignment, and that it writes only to its destinations.
#include "kernels/cpu/targets.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <tuple>

#include "support.h"

namespace tutti::kernels {
namespace {

using testing::Buffers;
using testing::Layout;
using testing::Values;

// Makes the reduction that an executor would use for this operation with `sources` operands.
Reduction reduction_for(DataType type, ReduceOp op, std::size_t sources) {
  Reduction reduction{.type = type, .op = op, .scale = {}};
  if (op == ReduceOp::kAvg) reduction.divisor = static_cast<std::uint32_t>(sources + 2);
  if (op == ReduceOp::kPreMulSum) {
    reduction.scaled_source = static_cast<std::ptrdiff_t>(sources / 2);
    reduction.scale = {.real = 0.3, .integer = -7};
  }
  return reduction;
}

// Runs the reference and every target on equal buffers and compares the results.
void expect_reference_bits(const Reduction& reduction, const Layout& layout, Values values, std::uint64_t seed) {
  const Buffers expected(layout, values, seed);
  reduce_reference(reduction, expected.sources(), expected.destinations(), layout.count);
  const std::size_t bytes = layout.count * size_of(layout.type);
  testing::for_each_target([&] {
    const Buffers actual(layout, values, seed);
    kernels::reduce(reduction, actual.sources(), actual.destinations(), layout.count);
    for (std::size_t i = 0; i < layout.destinations; ++i) {
      const std::byte* wanted = expected.destinations()[i];
      const std::byte* got = actual.destinations()[i];
      const auto wrong = std::mismatch(wanted, wanted + bytes, got).first - wanted;
      ASSERT_EQ(static_cast<std::size_t>(wrong), bytes)
          << "destination " << i << " differs at element " << static_cast<std::size_t>(wrong) / size_of(layout.type);
    }
    ASSERT_TRUE(actual.guards_intact());
  });
}

std::string describe(const Reduction& reduction, const Layout& layout, std::uint64_t seed) {
  return std::string(to_string(reduction.type)) + " " + std::string(to_string(reduction.op)) + " sources " +
         std::to_string(layout.sources) + " destinations " + std::to_string(layout.destinations) + " count " +
         std::to_string(layout.count) + " in place " + std::to_string(layout.in_place) + " seed " +
         std::to_string(seed);
}

class Targets : public ::testing::TestWithParam<std::tuple<DataType, ReduceOp>> {
 protected:
  DataType type() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }

  void expect_agreement(Reduction reduction, const Layout& layout, Values values) {
    ++seed_;
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(reduction, layout, seed_));
    expect_reference_bits(reduction, layout, values, seed_);
  }

 private:
  std::uint64_t seed_ = 1000;
};

constexpr std::size_t kSourceCounts[] = {1, 2, 3, 5, 8, 17};
constexpr std::size_t kDestinationCounts[] = {1, 2, 4};
constexpr std::size_t kCounts[] = {0, 1, 2, 3, 7, 63, 64, 65, 255, 257, 1001};
constexpr std::size_t kFarAway = std::size_t{1} << 40;  // bytes until reuse; so many that stores bypass the caches

TEST_P(Targets, GiveTheReferencesBitsForEveryShape) {
  for (const std::size_t sources : kSourceCounts) {
    for (const std::size_t destinations : kDestinationCounts) {
      for (const std::size_t count : kCounts) {
        const Layout layout{.type = type(), .sources = sources, .destinations = destinations, .count = count};
        for (const Values values : {Values::kOrdinary, Values::kWild}) {
          expect_agreement(reduction_for(type(), op(), sources), layout, values);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(Targets, GiveTheReferencesBitsInPlace) {
  for (const std::size_t sources : kSourceCounts) {
    for (const std::size_t destinations : {std::size_t{1}, sources, sources + 1}) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{64}, std::size_t{1001}}) {
        const Layout layout{
            .type = type(), .sources = sources, .destinations = destinations, .count = count, .in_place = true};
        expect_agreement(reduction_for(type(), op(), sources), layout, Values::kWild);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Targets, GiveTheReferencesBitsWithStoresAroundTheCaches) {
  for (const std::size_t sources : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
    for (const bool staggered : {false, true}) {
      for (const std::size_t count : kCounts) {
        Layout layout{.type = type(), .sources = sources, .destinations = 2, .count = count, .staggered = staggered};
        Reduction reduction = reduction_for(type(), op(), sources);
        reduction.bytes_until_reuse = kFarAway;
        expect_agreement(reduction, layout, Values::kWild);
        layout.destinations = 1;
        expect_agreement(reduction, layout, Values::kWild);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Targets, GiveTheReferencesBitsForAFactorAndADivisorAtOnce) {
  for (const std::ptrdiff_t scaled_source : {0, 1, 2}) {
    for (const Scale& scale : {Scale{.real = -1.75, .integer = 3}, Scale{.real = 0, .integer = 0},
                               Scale{.real = 1e300, .integer = INT64_MIN}}) {
      for (const std::uint32_t divisor : {1u, 2u, 3u, 300u, 0xFFFFFFFFu}) {
        const Layout layout{.type = type(), .sources = 3, .destinations = 1, .count = 1001};
        const Reduction reduction{
            .type = type(), .op = op(), .scaled_source = scaled_source, .scale = scale, .divisor = divisor};
        expect_agreement(reduction, layout, Values::kWild);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTypeAndOp, Targets,
                         ::testing::Combine(::testing::ValuesIn(all_data_types().begin(), all_data_types().end()),
                                            ::testing::ValuesIn(all_reduce_ops().begin(), all_reduce_ops().end())),
                         [](const auto& instance) {
                           return std::string(to_string(std::get<0>(instance.param))) + "_" +
                                  std::string(to_string(std::get<1>(instance.param)));
                         });

TEST(Target, IsTheBestOfThisMachineUnlessHeld) {
  const std::vector<std::string> targets = testing::available_targets();
  EXPECT_EQ(std::count(targets.begin(), targets.end(), target_name()), 1);
#if HWY_ARCH_X86_64
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "AVX2"), __builtin_cpu_supports("avx2") ? 1 : 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // builds with them have only one vector target
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "SSE4"), __builtin_cpu_supports("sse4.2") ? 1 : 0);
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "AVX3"), __builtin_cpu_supports("avx512bw") ? 1 : 0);
#endif
  EXPECT_EQ(std::string(target_name()) == "SCALAR", targets.size() == 1);
#endif
}

TEST(Target, IsWhatHighwayFinds) {
#if HWY_ARCH_X86_64
  constexpr std::int64_t kAsked = HWY_SSE4 | HWY_AVX2 | HWY_AVX3;
#else
  constexpr std::int64_t kAsked = HWY_STATIC_TARGET;
#endif
  EXPECT_EQ(supported_targets() & kAsked, hwy::SupportedTargets() & kAsked);
  EXPECT_NE(supported_targets() & HWY_STATIC_TARGET, 0);
}

TEST(Reduce, GivesTheReferencesBitsForALongOddCount) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8E4M3,
                              DataType::kFloat8E5M2, DataType::kInt8}) {
    const Layout layout{.type = type, .sources = 3, .destinations = 2, .count = 1'000'003};
    expect_reference_bits(reduction_for(type, ReduceOp::kSum, 3), layout, Values::kOrdinary, 9);
  }
}

TEST(Reduce, TakesTheMostSourcesItPromises) {
  const Layout layout{.type = DataType::kBfloat16, .sources = kMaxSources, .destinations = 3, .count = 77};
  expect_reference_bits({.type = DataType::kBfloat16, .op = ReduceOp::kSum, .scale = {}}, layout, Values::kOrdinary, 1);
}

TEST(Reduce, DoesNotCareForTheCallersRoundingAndLeavesItAlone) {
  const Layout layout{.type = DataType::kFloat32, .sources = 3, .destinations = 1, .count = 1001};
  const Buffers expected(layout, Values::kWild, 5);
  const Buffers actual(layout, Values::kWild, 5);
  const Reduction reduction = reduction_for(DataType::kFloat32, ReduceOp::kAvg, 3);
  reduce_reference(reduction, expected.sources(), expected.destinations(), layout.count);
  std::fesetround(FE_UPWARD);
#if HWY_ARCH_X86_64
  constexpr unsigned kFlushToZero = 0x8000;
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | kFlushToZero);
#endif
  kernels::reduce(reduction, actual.sources(), actual.destinations(), layout.count);
#if HWY_ARCH_X86_64
  EXPECT_NE(__builtin_ia32_stmxcsr() & kFlushToZero, 0u);
#endif
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetenv(FE_DFL_ENV);
  EXPECT_EQ(std::memcmp(actual.destinations()[0], expected.destinations()[0], layout.count * 4), 0);
}

}  // namespace
}  // namespace tutti::kernels
