// Implements the table at the top of collective.h as functions.
#include "plan/collective.h"

namespace tutti {
std::uint32_t input_chunks(const PlanShape& shape, std::uint32_t rank) {
  return input_blocks(shape.collective, rank).count * shape.chunks;
}

std::uint32_t output_chunks(const PlanShape& shape, std::uint32_t rank) {
  return output_blocks(shape.collective, rank).count * shape.chunks;
}

std::uint32_t space_chunks(const PlanShape& shape, std::uint32_t rank, Space space) {
  switch (space) {
    case Space::kInput: return input_chunks(shape, rank);
    case Space::kOutput: return output_chunks(shape, rank);
    case Space::kScratch: return shape.scratch_chunks;
    case Space::kNone: break;
  }
  return 0;
}

std::uint32_t data(const PlanShape& shape) {
  const bool all = row_of(shape.collective.kind).input == BlockSet::kAll;
  return all ? shape.collective.ranks * shape.chunks : shape.chunks;
}

ExpectedOutput expected_output(const PlanShape& shape, std::uint32_t rank, std::uint32_t chunk) {
  const CollectiveRow& row = row_of(shape.collective.kind);
  ExpectedOutput result{.datum = chunk % shape.chunks,
                        .contributor = contributor_of(row.kind, shape.collective.ranks, shape.collective.root, rank,
                                                      chunk / shape.chunks)};
  // If an input has a block for each rank, the datum is in the block for this rank, which is block number `rank`.
  if (row.input == BlockSet::kAll) result.datum += rank * shape.chunks;
  if (row.reduces) result.contributor = kEveryRank;
  return result;
}

std::uint32_t output_alias(const PlanShape& shape, std::uint32_t rank, std::uint32_t input_chunk) {
  const CollectiveRow& row = row_of(shape.collective.kind);
  if (row.input == BlockSet::kNone) return kNoChunk;
  if (row.root != RootHas::kNothing && rank != shape.collective.root) return kNoChunk;
  if ((row.input == BlockSet::kAll) == (row.output == BlockSet::kAll)) return input_chunk;
  // The input is this rank's own block. In the output, which has the blocks of all ranks, it is block number `rank`.
  if (row.output == BlockSet::kAll) return rank * shape.chunks + input_chunk;
  return input_chunk / shape.chunks == rank ? input_chunk % shape.chunks : kNoChunk;
}

}  // namespace tutti
