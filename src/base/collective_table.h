// The table of collectives. Code that treats collectives differently reads a row instead of listing collectives, so
// that a new collective needs a row here and, in most places, nothing else. docs/collectives.md says what each does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/types.h"

namespace tutti {

// Which blocks a rank's input or output holds. A block is the unit of which a call's arguments give the length.
enum class BlockSet : std::uint8_t {
  kNone,
  kOne,  // one block, which belongs to no rank in particular
  kOwn,  // the block of this rank
  kAll,  // one block for each rank, in the order of ranks
};

// Which buffer only the root has.
enum class RootHas : std::uint8_t { kNothing, kTheInput, kTheOutput };

struct CollectiveRow {
  CollectiveKind kind;
  std::string_view name;
  bool reduces;  // adds up the inputs; the other collectives only move them
  BlockSet input;
  BlockSet output;
  RootHas root = RootHas::kNothing;
  bool has_data = true;  // false: a barrier, whose plan is an all_reduce of nothing
};

inline constexpr std::array kCollectiveTable = {
    CollectiveRow{CollectiveKind::kAllReduce, "all_reduce", true, BlockSet::kOne, BlockSet::kOne},
    CollectiveRow{CollectiveKind::kBroadcast, "broadcast", false, BlockSet::kOne, BlockSet::kOne, RootHas::kTheInput},
    CollectiveRow{CollectiveKind::kReduce, "reduce", true, BlockSet::kOne, BlockSet::kOne, RootHas::kTheOutput},
    CollectiveRow{CollectiveKind::kAllGather, "all_gather", false, BlockSet::kOwn, BlockSet::kAll},
    CollectiveRow{CollectiveKind::kReduceScatter, "reduce_scatter", true, BlockSet::kAll, BlockSet::kOwn},
    CollectiveRow{CollectiveKind::kAllToAll, "all_to_all", false, BlockSet::kAll, BlockSet::kAll},
    CollectiveRow{CollectiveKind::kGather, "gather", false, BlockSet::kOwn, BlockSet::kAll, RootHas::kTheOutput},
    CollectiveRow{CollectiveKind::kScatter, "scatter", false, BlockSet::kAll, BlockSet::kOwn, RootHas::kTheInput},
    CollectiveRow{CollectiveKind::kBarrier, "barrier", true, BlockSet::kOne, BlockSet::kOne, RootHas::kNothing, false},
    // Point to point: it has no plan, and all_collectives() does not list it.
    CollectiveRow{CollectiveKind::kSendReceive, "send_recv", false, BlockSet::kNone, BlockSet::kNone},
};

static_assert([] {
  for (std::size_t i = 0; i < kCollectiveTable.size(); ++i) {
    if (static_cast<std::size_t>(kCollectiveTable[i].kind) != i) return false;
  }
  return true;
}());

// The row of a collective. A value that is no collective, for example out of a damaged message, has the last row, with
// neither input nor output.
constexpr const CollectiveRow& row_of(CollectiveKind kind) {
  const auto row = static_cast<std::size_t>(kind);
  return row < kCollectiveTable.size() ? kCollectiveTable[row] : kCollectiveTable.back();
}

constexpr bool reduces(CollectiveKind kind) { return row_of(kind).reduces; }
constexpr bool has_root(CollectiveKind kind) { return row_of(kind).root != RootHas::kNothing; }
// The input, or the output, has a block for each rank.
constexpr bool has_blocks(CollectiveKind kind) {
  return row_of(kind).input == BlockSet::kAll || row_of(kind).output == BlockSet::kAll;
}

}  // namespace tutti
