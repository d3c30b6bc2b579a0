// Tests the functions that define the collectives: the contents of all inputs and outputs.
#include "plan/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tutti {
namespace {

using Kind = CollectiveKind;

// Calls visit(shape, rank) for every collective, several numbers of ranks and chunks, every root and every rank.
template <class Visit>
void for_each_buffer(Visit visit) {
  for (const Kind kind : all_collectives()) {
    for (const std::uint32_t ranks : {1u, 2u, 3u, 5u, 8u}) {
      for (std::uint32_t root = 0; root < (has_root(kind) ? ranks : 1); ++root) {
        for (const std::uint32_t chunks : {1u, 2u, 5u}) {
          const PlanShape shape{.collective = {.kind = kind, .ranks = ranks, .root = root}, .chunks = chunks};
          for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            SCOPED_TRACE(testing::Message() << to_string(kind) << ", rank " << rank << " of " << ranks << ", root "
                                            << root << ", " << chunks << " chunks");
            visit(shape, rank);
          }
        }
      }
    }
  }
}

// The contents of in[chunk] of `rank`, as in the column "in[c]" of the table in plan/collective.h.
ExpectedOutput given(const PlanShape&, std::uint32_t rank, std::uint32_t chunk) {
  return {.datum = chunk, .contributor = rank};
}

TEST(CollectiveTable, SaysHowManyBlocksEachBufferHas) {
  const auto blocks = [](Kind kind, std::uint32_t rank) {
    const Collective collective{.kind = kind, .ranks = 4, .root = has_root(kind) ? 2u : 0u};
    return std::pair(input_blocks(collective, rank), output_blocks(collective, rank));
  };
  const Blocks none{};
  const Blocks one{.count = 1, .first = 0};
  const Blocks all{.count = 4, .first = 0};
  const Blocks own2{.count = 1, .first = 2};
  const Blocks own3{.count = 1, .first = 3};
  using Both = std::pair<Blocks, Blocks>;
  for (const std::uint32_t rank : {2u, 3u}) {  // rank 2 is the root, rank 3 is not
    EXPECT_EQ(blocks(Kind::kAllReduce, rank), Both(one, one));
    EXPECT_EQ(blocks(Kind::kBarrier, rank), Both(one, one));
    EXPECT_EQ(blocks(Kind::kAllToAll, rank), Both(all, all));
  }
  EXPECT_EQ(blocks(Kind::kBroadcast, 2), Both(one, one));
  EXPECT_EQ(blocks(Kind::kBroadcast, 3), Both(none, one));
  EXPECT_EQ(blocks(Kind::kReduce, 2), Both(one, one));
  EXPECT_EQ(blocks(Kind::kReduce, 3), Both(one, none));
  EXPECT_EQ(blocks(Kind::kAllGather, 3), Both(own3, all));
  EXPECT_EQ(blocks(Kind::kReduceScatter, 3), Both(all, own3));
  EXPECT_EQ(blocks(Kind::kGather, 2), Both(own2, all));
  EXPECT_EQ(blocks(Kind::kGather, 3), Both(own3, none));
  EXPECT_EQ(blocks(Kind::kScatter, 2), Both(all, own2));
  EXPECT_EQ(blocks(Kind::kScatter, 3), Both(none, own3));
}

TEST(CollectiveTable, CountsChunksBlockByBlock) {
  for_each_buffer([](const PlanShape& shape, std::uint32_t rank) {
    EXPECT_EQ(input_chunks(shape, rank), input_blocks(shape.collective, rank).count * shape.chunks);
    EXPECT_EQ(output_chunks(shape, rank), output_blocks(shape.collective, rank).count * shape.chunks);
    const Blocks blocks = output_blocks(shape.collective, rank);
    EXPECT_LE(blocks.first + blocks.count, shape.collective.ranks);
  });
}

// Each alias must be an existing output, and no two inputs may have the same alias.
TEST(CollectiveTable, HasMutualAliasesInBounds) {
  for_each_buffer([](const PlanShape& shape, std::uint32_t rank) {
    std::set<std::uint32_t> outputs;
    for (std::uint32_t chunk = 0; chunk < input_chunks(shape, rank); ++chunk) {
      const std::uint32_t alias = output_alias(shape, rank, chunk);
      if (alias == kNoChunk) continue;
      EXPECT_LT(alias, output_chunks(shape, rank));
      EXPECT_TRUE(outputs.insert(alias).second) << "out[" << alias << "] is the alias of two inputs";
    }
  });
}

// In place, the two buffers share whole blocks in the same order, because the smaller buffer is part of the larger
// one.
TEST(CollectiveTable, AliasesAreARunOfChunks) {
  for_each_buffer([](const PlanShape& shape, std::uint32_t rank) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> shared;  // (input chunk, output chunk)
    for (std::uint32_t chunk = 0; chunk < input_chunks(shape, rank); ++chunk) {
      const std::uint32_t alias = output_alias(shape, rank, chunk);
      if (alias != kNoChunk) shared.emplace_back(chunk, alias);
    }
    const bool in_place_form = input_chunks(shape, rank) > 0 && output_chunks(shape, rank) > 0;
    EXPECT_EQ(shared.size(), in_place_form ? std::min(input_chunks(shape, rank), output_chunks(shape, rank)) : 0u);
    for (std::size_t i = 1; i < shared.size(); ++i) {
      EXPECT_EQ(shared[i].first, shared[i - 1].first + 1);
      EXPECT_EQ(shared[i].second, shared[i - 1].second + 1);
    }
  });
}

// A rank's own block to which nothing is added is already at its destination in place, so it need not be moved.
TEST(CollectiveTable, MovingCollectivesKeepTheirOwnBlockInPlace) {
  for_each_buffer([](const PlanShape& shape, std::uint32_t rank) {
    const Kind kind = shape.collective.kind;
    if (reduces(kind)) return;
    for (std::uint32_t chunk = 0; chunk < input_chunks(shape, rank); ++chunk) {
      const std::uint32_t alias = output_alias(shape, rank, chunk);
      const bool replaced = replaces_input_in_place(kind) && input_chunks(shape, rank) == shape.chunks;
      const bool own = kind == Kind::kAllToAll ? chunk / shape.chunks == rank : !replaced;
      if (alias == kNoChunk || !own) continue;
      EXPECT_EQ(expected_output(shape, rank, alias), given(shape, rank, chunk)) << "chunk " << chunk;
    }
  });
}

// Every output must contain a datum that the named rank contributes.
TEST(CollectiveTable, WantsWhatIsGiven) {
  for_each_buffer([](const PlanShape& shape, std::uint32_t rank) {
    for (std::uint32_t chunk = 0; chunk < output_chunks(shape, rank); ++chunk) {
      const ExpectedOutput want = expected_output(shape, rank, chunk);
      EXPECT_LT(want.datum, data(shape));
      if (reduces(shape.collective.kind)) {
        EXPECT_EQ(want.contributor, kEveryRank);
        for (std::uint32_t from = 0; from < shape.collective.ranks; ++from) {
          EXPECT_LT(want.datum, input_chunks(shape, from));
        }
      } else {
        ASSERT_LT(want.contributor, shape.collective.ranks);
        EXPECT_LT(want.datum, input_chunks(shape, want.contributor));
      }
    }
  });
}

// Every input chunk must be used in some output.
TEST(CollectiveTable, WantsAllThatIsGiven) {
  for_each_buffer([](const PlanShape& shape, std::uint32_t rank) {
    std::set<std::uint32_t> wanted_of_rank;
    for (std::uint32_t to = 0; to < shape.collective.ranks; ++to) {
      for (std::uint32_t chunk = 0; chunk < output_chunks(shape, to); ++chunk) {
        const ExpectedOutput want = expected_output(shape, to, chunk);
        if (want.contributor == rank || want.contributor == kEveryRank) wanted_of_rank.insert(want.datum);
      }
    }
    EXPECT_EQ(wanted_of_rank.size(), input_chunks(shape, rank));
  });
}

TEST(CollectiveTable, TransposesInAnAllToAll) {
  const PlanShape shape{.collective = {.kind = Kind::kAllToAll, .ranks = 3}, .chunks = 2};
  EXPECT_EQ(expected_output(shape, 1, 5), (ExpectedOutput{.datum = 3, .contributor = 2}))
      << "rank 2's block 1, its second chunk";
  EXPECT_EQ(output_alias(shape, 1, 5), 5u);
}

TEST(CollectiveTable, KnowsWhatAddsAndWhatHasARoot) {
  EXPECT_TRUE(reduces(Kind::kAllReduce) && reduces(Kind::kReduce) && reduces(Kind::kReduceScatter) &&
              reduces(Kind::kBarrier));
  EXPECT_FALSE(reduces(Kind::kBroadcast) || reduces(Kind::kAllGather) || reduces(Kind::kAllToAll) ||
               reduces(Kind::kGather) || reduces(Kind::kScatter) || reduces(Kind::kSendReceive));
  EXPECT_TRUE(has_root(Kind::kBroadcast) && has_root(Kind::kReduce) && has_root(Kind::kGather) &&
              has_root(Kind::kScatter));
  EXPECT_FALSE(has_root(Kind::kAllReduce) || has_root(Kind::kAllGather) || has_root(Kind::kReduceScatter) ||
               has_root(Kind::kAllToAll) || has_root(Kind::kBarrier));
}

}  // namespace
}  // namespace tutti
