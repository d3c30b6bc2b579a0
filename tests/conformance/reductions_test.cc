// Tests user-defined reductions, and the rounding errors of floating-point sums.
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "conformance/suite.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

// 2 x 2 matrices of integers modulo a prime. Their multiplication is associative but not commutative.
struct Matrix {
  std::uint32_t a[4];
  bool operator==(const Matrix&) const = default;
};

Matrix times(const Matrix& x, const Matrix& y) {
  constexpr std::uint64_t kPrime = 65'521;
  Matrix z{};
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      z.a[2 * i + j] = static_cast<std::uint32_t>(
          (std::uint64_t{x.a[2 * i]} * y.a[j] + std::uint64_t{x.a[2 * i + 1]} * y.a[2 + j]) % kPrime);
    }
  }
  return z;
}

void multiply(const void* left, const void* right, void* result, std::size_t count, void* context) {
  const auto* x = static_cast<const Matrix*>(left);
  const auto* y = static_cast<const Matrix*>(right);
  auto* z = static_cast<Matrix*>(result);
  for (std::size_t i = 0; i < count; ++i) z[i] = times(x[i], y[i]);
  if (context != nullptr) ++*static_cast<std::atomic<int>*>(context);
}

Matrix matrix_of(std::int32_t rank, std::size_t i) {
  const auto r = static_cast<std::uint32_t>(rank);
  const auto n = static_cast<std::uint32_t>(i);
  return {{1 + r, 2 + n % 7, n % 5, 3 + r * n % 11}};
}

class UserReductions : public testing::TestWithParam<JobConfiguration> {
 protected:
  void SetUp() override { skip_unless_possible(GetParam()); }
};

TEST_P(UserReductions, CombineInRankOrderWhenTheyDoNotCommute) {
  constexpr std::int32_t kRanks = 4;
  Communicators ranks = make_configured_ranks(GetParam(), kRanks);
  for (const std::size_t count : {std::size_t{1}, std::size_t{100}, std::size_t{30'001}}) {
    for (const bool in_place : {false, true}) {
      std::atomic<int> calls = 0;
      on_every_rank(ranks, [&](Communicator& rank) {
        std::vector<Matrix> in(count), out(count);
        for (std::size_t i = 0; i < count; ++i) in[i] = matrix_of(rank.rank(), i);
        CallOptions options;
        options.reduction = {
            .combine = multiply, .context = &calls, .element_bytes = sizeof(Matrix), .commutative = false};
        Matrix* result = in_place ? in.data() : out.data();
        const Status status = rank.all_reduce(in.data(), result, count, DataType::kUint8, ReduceOp::kSum, options);
        ASSERT_TRUE(status.ok()) << tutti::to_string(status.error());
        for (std::size_t i = 0; i < count; ++i) {
          Matrix want = matrix_of(0, i);
          for (std::int32_t r = 1; r < kRanks; ++r) want = times(want, matrix_of(r, i));
          ASSERT_EQ(result[i], want) << "element " << i;
        }
      });
      EXPECT_GT(calls, 0);
    }
  }
}

TEST_P(UserReductions, ServeReduceAndReduceScatter) {
  constexpr std::int32_t kRanks = 3;
  constexpr std::size_t kCount = 5000;
  Communicators ranks = make_configured_ranks(GetParam(), kRanks);
  on_every_rank(ranks, [](Communicator& rank) {
    CallOptions options;
    options.reduction = {.combine = multiply, .element_bytes = sizeof(Matrix), .commutative = false};
    std::vector<Matrix> in(kRanks * kCount), out(kRanks * kCount);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = matrix_of(rank.rank(), i);
    const auto want = [](std::size_t i) { return times(times(matrix_of(0, i), matrix_of(1, i)), matrix_of(2, i)); };
    ASSERT_TRUE(rank.reduce(in.data(), out.data(), kCount, DataType::kUint8, ReduceOp::kSum, 1, options).ok());
    for (std::size_t i = 0; rank.rank() == 1 && i < kCount; ++i) ASSERT_EQ(out[i], want(i));
    ASSERT_TRUE(rank.reduce_scatter(in.data(), out.data(), kCount, DataType::kUint8, ReduceOp::kSum, options).ok());
    const std::size_t first = static_cast<std::size_t>(rank.rank()) * kCount;
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], want(first + i));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, UserReductions, testing::ValuesIn(configurations()),
                         [](const auto& world) { return std::string(world.param.name); });
INSTANTIATE_TEST_SUITE_P(UcxWorlds, UserReductions, testing::ValuesIn(kUcxConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });
INSTANTIATE_TEST_SUITE_P(ChecksumWorlds, UserReductions, testing::ValuesIn(kChecksumConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

TEST(UserReductions, AreRefusedWhereTheyCannotBeRight) {
  auto ranks = make_ranks(2);
  std::vector<Matrix> data(10);
  CallOptions options;
  options.reduction = {.combine = multiply, .element_bytes = sizeof(Matrix), .commutative = false};
  const auto refused = [&](const Status& status, const char* what) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(what));
  };
  refused(ranks[0]->broadcast(data.data(), data.data(), 1, DataType::kUint8, 0, options), "adds nothing");
  options.algorithm = Algorithm::kRing;
  refused(ranks[0]->all_reduce(data.data(), data.data(), 1, DataType::kUint8, ReduceOp::kSum, options), "rank order");
  options.reduction.element_bytes = 5000;
  refused(ranks[0]->all_reduce(data.data(), data.data(), 1, DataType::kUint8, ReduceOp::kSum, options), "1 to 4096");
}

TEST(UserReductions, NameTheRankThatMeansAnother) {
  auto ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<Matrix> data(10);
    CallOptions options;
    options.reduction = {.combine = multiply, .element_bytes = sizeof(Matrix), .id = rank.rank() == 1 ? 8u : 7u};
    const Status status = rank.all_reduce(data.data(), data.data(), 10, DataType::kUint8, ReduceOp::kSum, options);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(status.error().rank, 1);
  });
}

// The float sum of any algorithm differs from the exact one by at most (p - 1) roundings, relative to the sum of the
// absolute values.
TEST(RandomSums, StayWithinTheirBoundOfFloat64) {
  constexpr std::int32_t kRanks = 6;
  constexpr std::size_t kCount = 3001;
  auto ranks = make_ranks(kRanks);
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(kCount));
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (auto& input : inputs) {
    for (float& x : input) x = normal(random);
  }
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduce}) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      on_every_rank(ranks, [&](Communicator& rank) {
        std::vector<float> out(kCount);
        ASSERT_TRUE(rank.run({.kind = kind,
                              .input = inputs[static_cast<std::size_t>(rank.rank())].data(),
                              .output = out.data(),
                              .count = kCount},
                             with(algorithm))
                        .ok());
        if (kind == CollectiveKind::kReduce && rank.rank() != 0) return;
        for (std::size_t i = 0; i < kCount; ++i) {
          double exact = 0, size = 0;
          for (const auto& input : inputs) {
            exact += input[i];
            size += std::abs(input[i]);
          }
          ASSERT_LE(std::abs(out[i] - exact), (kRanks - 1) * std::ldexp(1.0, -24) * size)
              << tutti::to_string(algorithm);
        }
      });
    }
  }
}

}  // namespace
}  // namespace tutti::test
