// Properties of a collective that follow from its row in the table (include/tutti/collectives.h). Pure functions.
#pragma once

#include <cstdint>

#include "tutti/collectives.h"

namespace tutti {

// Whether plans exist for the collective. False for kSendReceive, and for values that are not in the enumeration.
constexpr bool has_plan(CollectiveKind kind) { return row_of(kind).output != BlockSet::kNone; }
constexpr bool has_data(CollectiveKind kind) { return row_of(kind).has_data; }
constexpr bool reduces(CollectiveKind kind) { return row_of(kind).reduces; }
constexpr bool has_root(CollectiveKind kind) { return row_of(kind).root != RootHas::kNothing; }
// True if the input or the output consists of one block for each rank.
constexpr bool has_blocks(CollectiveKind kind) {
  return row_of(kind).input == BlockSet::kAll || row_of(kind).output == BlockSet::kAll;
}

// True if all ranks get the same reduced vector: all_reduce.
constexpr bool gives_sum_to_all(CollectiveKind kind) {
  return reduces(kind) && has_data(kind) && !has_root(kind) && !has_blocks(kind);
}

// True if no rank can finish a call before all ranks have entered it, because every rank's output depends on the input
// of every rank.
constexpr bool needs_all_ranks(CollectiveKind kind) {
  return !has_root(kind) && (reduces(kind) || row_of(kind).output == BlockSet::kAll);
}

// True if a rank, in an in-place call, can replace blocks of its input before other ranks have read them. Such a call
// must not let other ranks read its input directly.
constexpr bool replaces_input_in_place(CollectiveKind kind) {
  const CollectiveRow& row = row_of(kind);
  return has_plan(kind) && !row.reduces && row.root == RootHas::kNothing &&
         (row.input == BlockSet::kAll) == (row.output == BlockSet::kAll);
}

// For a collective that does not reduce: returns the rank that contributes block number `block`, counted from 0, of the
// output of `rank`.
constexpr std::uint32_t contributor_of(CollectiveKind kind, std::uint32_t ranks, std::uint32_t root, std::uint32_t rank,
                                       std::uint32_t block) {
  const CollectiveRow& row = row_of(kind);
  return row.root == RootHas::kTheInput ? root : (first_block(row.output, rank) + block) % ranks;
}

}  // namespace tutti
