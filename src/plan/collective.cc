// The table of collective.h as functions.
#include "plan/collective.h"

namespace tutti {
namespace {

Blocks blocks_of(BlockSet set, const Collective& collective, std::uint32_t rank) {
  switch (set) {
    case BlockSet::kNone: break;
    case BlockSet::kOne: return {.count = 1, .first = 0};
    case BlockSet::kOwn: return {.count = 1, .first = rank};
    case BlockSet::kAll: return {.count = collective.ranks, .first = 0};
  }
  return {};
}

}  // namespace

Blocks input_blocks(const Collective& collective, std::uint32_t rank) {
  const CollectiveRow& row = row_of(collective.kind);
  if (row.root == RootHas::kTheInput && rank != collective.root) return {};
  return blocks_of(row.input, collective, rank);
}

Blocks output_blocks(const Collective& collective, std::uint32_t rank) {
  const CollectiveRow& row = row_of(collective.kind);
  if (row.root == RootHas::kTheOutput && rank != collective.root) return {};
  return blocks_of(row.output, collective, rank);
}

std::uint32_t input_chunks(const PlanShape& shape, std::uint32_t rank) {
  return input_blocks(shape.collective, rank).count * shape.chunks;
}

std::uint32_t output_chunks(const PlanShape& shape, std::uint32_t rank) {
  return output_blocks(shape.collective, rank).count * shape.chunks;
}

std::uint32_t data(const PlanShape& shape) {
  const bool all = row_of(shape.collective.kind).input == BlockSet::kAll;
  return all ? shape.collective.ranks * shape.chunks : shape.chunks;
}

ExpectedOutput expected_output(const PlanShape& shape, std::uint32_t rank, std::uint32_t chunk) {
  const CollectiveRow& row = row_of(shape.collective.kind);
  ExpectedOutput result{.datum = chunk % shape.chunks, .contributor = chunk / shape.chunks};
  if (row.input == BlockSet::kAll) result.datum += rank * shape.chunks;  // of the contributor's blocks, this rank's
  if (row.root == RootHas::kTheInput) result.contributor = shape.collective.root;
  if (row.reduces) result.contributor = kEveryRank;
  return result;
}

std::uint32_t output_alias(const PlanShape& shape, std::uint32_t rank, std::uint32_t input_chunk) {
  const CollectiveRow& row = row_of(shape.collective.kind);
  if (row.input == BlockSet::kNone) return kNoChunk;
  if (row.root != RootHas::kNothing && rank != shape.collective.root) return kNoChunk;
  if (row.input == row.output) return input_chunk;
  if (row.input == BlockSet::kOwn) return rank * shape.chunks + input_chunk;  // its place among all blocks
  return input_chunk / shape.chunks == rank ? input_chunk % shape.chunks : kNoChunk;
}

}  // namespace tutti
