// Tests how long calls are split into segments. The execution of the segments is tested in tests/device/calls, over the
// fake CUDA driver.
#include "engine/segments.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "algorithms/algorithms.h"
#include "tutti/types.h"

namespace tutti::detail {
namespace {

// The segments must cover the block without gaps, be at most kMostSegments, and start on page boundaries (4096
// bytes). A block is split only if it has at least 2 * kSegmentBytes bytes.
TEST(Pieces, CoverTheBlockInOrder) {
  for (const std::size_t element_bytes : {1u, 2u, 4u, 8u}) {
    const std::uint64_t least = 2 * kSegmentBytes / element_bytes;
    for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, least - 1, least, least + 1, 3 * least,
                                      kMostSegments * least + 1, 1000 * least + 77}) {
      const std::vector<Segment> segments = split_into_segments(count, element_bytes);
      EXPECT_EQ(segments.size() > 1, count >= least) << count << " elements of " << element_bytes;
      EXPECT_LE(segments.size(), kMostSegments);
      std::uint64_t next = 0;
      for (const Segment& segment : segments) {
        EXPECT_EQ(segment.first, next);
        EXPECT_EQ(segment.first * element_bytes % 4096, 0u) << "a segment starts inside a page";
        EXPECT_TRUE(segment.count > 0 || count == 0);
        EXPECT_LE(segment.count, segments.front().count);
        next += segment.count;
      }
      EXPECT_EQ(next, count);
      if (count < kMostSegments * least / 2) {
        EXPECT_LE(segments.front().count * element_bytes, 2 * kSegmentBytes);
      }
    }
  }
}

// A call can be split only if its plan treats every element in the same way. Otherwise the result would depend on
// the position of an element in its segment.
TEST(Pieces, OnlyPlansThatDoTheSameWithEveryElementAreCut) {
  const auto same = [](CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks) {
    Collective collective;
    collective.kind = kind;
    collective.ranks = ranks;
    auto generator = find_generator(collective, algorithm);
    EXPECT_TRUE(generator.ok()) << to_string(generator.error());
    return generator.ok() && same_in_segments(generator->shape);
  };
  using Kind = CollectiveKind;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kRecursiveDoubling}) {
    EXPECT_TRUE(same(Kind::kAllReduce, algorithm, 5)) << to_string(algorithm);
  }
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kBinomial, Algorithm::kTree}) {
    EXPECT_TRUE(same(Kind::kReduce, algorithm, 5)) << to_string(algorithm);
  }
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kDoubleTree, Algorithm::kRing}) {
    EXPECT_TRUE(same(Kind::kBroadcast, algorithm, 5)) << to_string(algorithm);
  }
  // These algorithms add the chunks of a block in different orders or with different parentheses, so that the
  // rounding of an element depends on its chunk.
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubleTree, Algorithm::kHalvingDoubling}) {
    EXPECT_FALSE(same(Kind::kAllReduce, algorithm, 6)) << to_string(algorithm);
  }
  EXPECT_FALSE(same(Kind::kReduce, Algorithm::kRing, 5));
  for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll, Kind::kGather, Kind::kScatter}) {
    EXPECT_FALSE(same(kind, Algorithm::kDirect, 5)) << to_string(kind) << " has several blocks";
  }
}

}  // namespace
}  // namespace tutti::detail
