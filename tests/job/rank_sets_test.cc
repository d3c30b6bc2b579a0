#include "job/rank_sets.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace tutti {
namespace {

std::vector<bool> every(std::size_t step, std::size_t ranks) {
  std::vector<bool> set(ranks, false);
  for (std::size_t rank = 0; rank < ranks; rank += step) set[rank] = true;
  return set;
}

TEST(RankSets, AreWrittenAsRunsOrAsDigitsWhicheverIsShorter) {
  EXPECT_EQ(pack_ranks(std::vector<bool>(65535, true)).value(), "0-65534");
  EXPECT_EQ(pack_ranks(every(2, 8)).value(), "x55");
  EXPECT_EQ(pack_ranks(std::vector<bool>(9, false)).value(), "");
  EXPECT_EQ(unpack_ranks("x55", 8), every(2, 8));
}

// Every step-th rank, as from a launcher that assigns ranks to machines round-robin.
TEST(RankSets, ScatteredOnesFitInOneBlob) {
  for (const std::size_t ranks : {std::size_t{1}, std::size_t{1024}, std::size_t{4097}, kMostScatteredRanks}) {
    for (const std::size_t step : {1, 2, 3, 7, 64}) {
      const auto text = pack_ranks(every(step, ranks));
      ASSERT_TRUE(text.ok()) << ranks << " ranks, every " << step;
      EXPECT_LT(text->size(), Bootstrap::kMaxBlobBytes) << ranks << " ranks, every " << step;
      EXPECT_EQ(unpack_ranks(*text, ranks), every(step, ranks)) << ranks << " ranks, every " << step;
    }
  }
}

TEST(RankSets, MoreScatteredRanksThanFitAreRefusedWithTheLimit) {
  EXPECT_TRUE(pack_ranks(every(2, kMostScatteredRanks)).ok());
  const auto text = pack_ranks(every(2, 65535));
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(text.error().message.find(std::to_string(kMostScatteredRanks)), std::string::npos) << text.error().message;
}

TEST(RankSets, NonsenseHasNoRanks) {
  for (const char* text : {"xyz", "x", "5", "-", "9-2", "x\xff", ",,,", "70000-70001", "0-x", "3-7abc", "-3", "0-"}) {
    EXPECT_EQ(unpack_ranks(text, 8), std::vector<bool>(8, false)) << text;
  }
}

}  // namespace
}  // namespace tutti
