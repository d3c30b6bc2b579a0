// Tests the v-variants: blocks of different lengths, displacements, and the errors for invalid ones.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "conformance/suite.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

class VVariants : public testing::TestWithParam<JobConfiguration> {
 protected:
  void SetUp() override { skip_unless_possible(GetParam()); }
};

std::vector<std::size_t> unequal(std::int32_t ranks) {
  std::vector<std::size_t> counts;
  for (std::int32_t r = 0; r < ranks; ++r) counts.push_back(r == 1 ? 0 : static_cast<std::size_t>(r * r) * 20'011 + 3);
  return counts;
}

std::vector<std::size_t> starts_with_gaps(const std::vector<std::size_t>& counts, std::size_t gap) {
  std::vector<std::size_t> starts;
  std::size_t at = gap;
  for (const std::size_t count : counts) {
    starts.push_back(at);
    at += count + gap;
  }
  return starts;
}

TEST_P(VVariants, AllGatherGivesEveryRankEveryBlock) {
  Communicators ranks = make_configured_ranks(GetParam(), 4);
  const auto counts = unequal(4);
  for (const std::size_t gap : {std::size_t{0}, std::size_t{7}}) {
    for (const bool in_place : {false, true}) {
      for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllGather)) {
        on_every_rank(ranks, [&](Communicator& rank) {
          const auto me = static_cast<std::size_t>(rank.rank());
          const auto starts = starts_with_gaps(counts, gap);
          std::vector<float> whole(starts.back() + counts.back() + gap, -1.0f), own(counts[me]);
          for (std::size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(given(rank.rank(), i));
          float* block = own.data();
          if (in_place) block = std::copy(own.begin(), own.end(), whole.data() + starts[me]) - own.size();
          BlockCounts blocks{.counts = counts};
          if (gap > 0) blocks.displacements = starts;
          const Status status = rank.all_gather_v(block, whole.data(), blocks, DataType::kFloat32, with(algorithm));
          ASSERT_TRUE(status.ok()) << tutti::to_string(status.error());
          for (std::int32_t r = 0; r < 4; ++r) {
            for (std::size_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i) {
              ASSERT_EQ(whole[starts[static_cast<std::size_t>(r)] + i], static_cast<float>(given(r, i)))
                  << "block " << r << " element " << i << " by " << tutti::to_string(algorithm);
            }
          }
          EXPECT_EQ(std::count(whole.begin(), whole.end(), -1.0f), static_cast<std::ptrdiff_t>(5 * gap));
        });
      }
    }
  }
}

TEST_P(VVariants, ReduceScatterGivesEveryRankItsOwnBlock) {
  Communicators ranks = make_configured_ranks(GetParam(), 4);
  const auto counts = unequal(4);
  const auto starts = starts_with_gaps(counts, 0);
  const std::size_t total = starts.back() + counts.back();
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kReduceScatter)) {
    on_every_rank(ranks, [&](Communicator& rank) {
      const auto me = static_cast<std::size_t>(rank.rank());
      std::vector<std::int32_t> in(total), out(counts[me], -1);
      for (std::size_t i = 0; i < total; ++i) in[i] = static_cast<std::int32_t>(given(rank.rank(), i));
      const Status status = rank.reduce_scatter_v(in.data(), out.data(), {.counts = counts}, DataType::kInt32,
                                                  ReduceOp::kSum, with(algorithm));
      ASSERT_TRUE(status.ok()) << tutti::to_string(status.error());
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i], reduced(4, starts[me] + i, DataType::kInt32, ReduceOp::kSum)) << i;
      }
    });
  }
}

TEST_P(VVariants, NameTheRankWhoseCountsDiffer) {
  Communicators ranks = make_configured_ranks(GetParam(), 3);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<std::size_t> counts = {4, 5, 6};
    if (rank.rank() == 2) counts = {4, 6, 5};  // with the same sum
    std::vector<float> own(6), whole(15);
    const Status status = rank.all_gather_v(own.data(), whole.data(), {.counts = counts}, DataType::kFloat32);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << tutti::to_string(status.error());
    EXPECT_EQ(status.error().rank, rank.rank() == 2 ? status.error().rank : 2);
    EXPECT_THAT(status.error().message, HasSubstr("counts of blocks with digest "));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, VVariants, testing::ValuesIn(configurations()),
                         [](const auto& world) { return std::string(world.param.name); });
INSTANTIATE_TEST_SUITE_P(UcxWorlds, VVariants, testing::ValuesIn(kUcxConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });
INSTANTIATE_TEST_SUITE_P(ChecksumWorlds, VVariants, testing::ValuesIn(kChecksumConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

TEST(VArguments, AreCheckedBeforeAnythingMoves) {
  auto ranks = make_ranks(2);
  std::vector<float> a(10), b(10);
  const std::vector<std::size_t> one = {1}, two = {1, 2}, overlapping = {0, 0}, huge = {SIZE_MAX, 1};
  const auto refused = [&](const BlockCounts& counts, const char* what) {
    const Status status = ranks[0]->all_gather_v(a.data(), b.data(), counts, DataType::kFloat32);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(what));
  };
  refused({.counts = one}, "1 counts for 2 ranks");
  refused({}, "0 counts for 2 ranks");
  refused({.counts = two, .displacements = one}, "1 displacements for 2 ranks");
  refused({.counts = two, .displacements = overlapping}, "blocks 0 and 1 overlap");
  refused({.counts = huge}, "more than any memory holds");
  const Status no_such = ranks[0]->run(
      {.kind = CollectiveKind::kBroadcast, .input = a.data(), .output = a.data(), .count = 1, .variable = true});
  ASSERT_FALSE(no_such.ok());
  EXPECT_THAT(no_such.error().message, HasSubstr("no broadcast_v"));
}

}  // namespace
}  // namespace tutti::test
