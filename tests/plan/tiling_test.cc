// Tests how a message is split into tiles and chunks.
#include "plan/tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tutti {
namespace {

struct Message {
  std::uint64_t count;
  std::size_t element_bytes;
  std::uint32_t chunks;
  std::size_t max_chunk_bytes;
};

// Checks everything that tiling.h promises, for one message.
void expect_promises(const Message& m) {
  SCOPED_TRACE(testing::Message() << "count " << m.count << " element " << m.element_bytes << " chunks " << m.chunks
                                  << " max " << m.max_chunk_bytes);
  const Tiling tiling(m.count, m.element_bytes, m.chunks, m.max_chunk_bytes);
  // each extent must begin at the end of the previous one, so that they are disjoint and complete
  std::uint64_t next = 0;
  std::uint64_t longest = 0;
  for (std::uint64_t tile = 0; tile < tiling.tiles(); ++tile) {
    std::uint64_t shortest_bytes = ~std::uint64_t{0};
    std::uint64_t longest_bytes = 0;
    for (std::uint32_t chunk = 0; chunk < m.chunks; ++chunk) {
      const Extent extent = tiling.extent(tile, chunk);
      ASSERT_EQ(extent.offset, next);
      next += extent.count;
      ASSERT_TRUE(next == m.count || next * m.element_bytes % 64 == 0) << "a boundary at element " << next;
      ASSERT_LE(extent.count * m.element_bytes, m.max_chunk_bytes);
      longest = std::max(longest, extent.count);
      longest_bytes = std::max<std::uint64_t>(longest_bytes, extent.count * m.element_bytes);
      if (next != m.count) shortest_bytes = std::min<std::uint64_t>(shortest_bytes, extent.count * m.element_bytes);
    }
    if (shortest_bytes != ~std::uint64_t{0}) {
      ASSERT_LE(longest_bytes, shortest_bytes + 64) << "tile " << tile << " is not divided evenly";
    }
    ASSERT_GT(longest_bytes, 0u) << "tile " << tile << " is empty";
  }
  ASSERT_EQ(next, m.count);
  ASSERT_EQ(tiling.max_chunk_count(), longest);
}

TEST(Tiling, CoversEveryElementOnceInAlignedEvenChunks) {
  for (const std::size_t element_bytes : {1u, 2u, 4u, 8u}) {
    for (const std::uint32_t chunks : {1u, 2u, 3u, 7u, 64u}) {
      for (const std::size_t max_chunk_bytes : {64u, 128u, 4096u}) {
        for (const std::uint64_t count : {1u, 2u, 3u, 7u, 63u, 64u, 65u, 1000u, 4096u, 10007u}) {
          expect_promises({count, element_bytes, chunks, max_chunk_bytes});
        }
      }
    }
  }
}

TEST(Tiling, CoversEveryElementOnceForRandomMessages) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    expect_promises({.count = 1 + random() % 200'000,
                     .element_bytes = std::size_t{1} << (random() % 4),
                     .chunks = static_cast<std::uint32_t>(1 + random() % 40),
                     .max_chunk_bytes = 64 * (1 + random() % 64)});
  }
}

TEST(Tiling, HasNoTilesForNoElements) {
  const Tiling tiling(0, 4, 8, 4096);
  EXPECT_EQ(tiling.tiles(), 0u);
  EXPECT_EQ(tiling.max_chunk_count(), 0u);
}

TEST(Tiling, GivesAShortMessageEmptyChunks) {
  const Tiling tiling(3, 4, 4, 4096);
  EXPECT_EQ(tiling.tiles(), 1u);
  EXPECT_EQ(tiling.extent(0, 0), (Extent{.offset = 0, .count = 3}));
  for (std::uint32_t chunk = 1; chunk < 4; ++chunk) EXPECT_EQ(tiling.extent(0, chunk).count, 0u);
}

TEST(Tiling, DividesTheLastTileEvenlyAsWell) {
  // 17 units of 64 bytes, the last one short; at most 8 units in a tile, so 6, 6 and 5
  const Tiling tiling(1040, 1, 4, 128);
  ASSERT_EQ(tiling.tiles(), 3u);
  EXPECT_EQ(tiling.extent(1, 3), (Extent{.offset = 704, .count = 64}));
  EXPECT_EQ(tiling.extent(2, 0), (Extent{.offset = 768, .count = 128}));
  EXPECT_EQ(tiling.extent(2, 1), (Extent{.offset = 896, .count = 64}));
  EXPECT_EQ(tiling.extent(2, 3), (Extent{.offset = 1024, .count = 16}));
}

TEST(Tiling, TakesTheLongestMessages) {
  const std::uint64_t count = std::uint64_t{1} << 60;
  const Tiling tiling(count, 8, 3, std::size_t{1} << 30);
  const Extent last = tiling.extent(tiling.tiles() - 1, 2);
  EXPECT_EQ(last.offset + last.count, count);
}

TEST(Tiling, IsTheSameForTheSameCall) {
  EXPECT_EQ(Tiling(12345, 4, 7, 4096), Tiling(12345, 4, 7, 4096));
  EXPECT_NE(Tiling(12345, 4, 7, 4096), Tiling(12346, 4, 7, 4096));
}

TEST(LongestChunk, IsThePartOfAMessageButHoldsAnElement) {
  EXPECT_EQ(longest_chunk_bytes(4096, 1, 4), 4096u);
  EXPECT_EQ(longest_chunk_bytes(4096, 3, 4), 1344u) << "1365, rounded down to a multiple of 64";
  EXPECT_EQ(longest_chunk_bytes(4096, 100, 4), 64u);
  EXPECT_EQ(longest_chunk_bytes(4096, 2, 3000), 3008u);
  EXPECT_TRUE(run_fits(4096, 1, 4096));
  EXPECT_TRUE(run_fits(4096, 64, 4));
  EXPECT_FALSE(run_fits(4096, 65, 4));
  EXPECT_FALSE(run_fits(4096, 2, 3000));
}

}  // namespace
}  // namespace tutti
