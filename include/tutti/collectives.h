// The collectives: their numbers, names and buffers in one table. Code that depends on properties of a collective reads
// its row in this table and does not list collectives, so that a new collective needs a row here, but no change in most
// of the other code.
// docs/collectives.md describes the buffers and the result of each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

// The numbers are sent between ranks and stored in recordings. So the present numbers must not change, and a new
// collective gets the next number.
enum class CollectiveKind : std::uint8_t {
  kAllReduce = 0,
  kBroadcast = 1,
  kReduce = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kAllToAll = 5,
  kGather = 6,
  kScatter = 7,
  kBarrier = 8,
  kSendReceive = 9,  // point-to-point; has no plan
};

// Which blocks a rank's input or output holds. A block is the unit of data: the argument `count` of a call is the
// length of one block (in a v-variant, each block has a length of its own).
enum class BlockSet : std::uint8_t {
  kNone,
  kOne,  // one block, which no rank owns, for example the vector of an all_reduce
  kOwn,  // the block of this rank
  kAll,  // one block for each rank, in the order of ranks
};

// Which buffer of a collective, input or output, only the root uses. The other ranks may pass null for this buffer.
enum class RootHas : std::uint8_t { kNothing, kTheInput, kTheOutput };

// How a call with blocks of different lengths (the _v variant) runs.
enum class VariableForm : std::uint8_t {
  kNone,      // the collective has no such variant
  kPlan,      // by a plan, because all ranks pass the same lengths
  kExchange,  // by sends and receives, because a rank knows only the lengths of its own blocks
};

struct CollectiveRow {
  CollectiveKind kind;
  std::string_view name;
  BlockSet input;
  BlockSet output;
  bool reduces = false;  // true: combines the ranks' inputs with a reduction; false: only moves them
  RootHas root = RootHas::kNothing;
  VariableForm variable = VariableForm::kNone;
  bool has_data = true;  // false: a barrier; its plan is an all_reduce of nothing
};

inline constexpr std::array kCollectiveTable = {
    CollectiveRow{.kind = CollectiveKind::kAllReduce,
                  .name = "all_reduce",
                  .input = BlockSet::kOne,
                  .output = BlockSet::kOne,
                  .reduces = true},
    CollectiveRow{.kind = CollectiveKind::kBroadcast,
                  .name = "broadcast",
                  .input = BlockSet::kOne,
                  .output = BlockSet::kOne,
                  .root = RootHas::kTheInput},
    CollectiveRow{.kind = CollectiveKind::kReduce,
                  .name = "reduce",
                  .input = BlockSet::kOne,
                  .output = BlockSet::kOne,
                  .reduces = true,
                  .root = RootHas::kTheOutput},
    CollectiveRow{.kind = CollectiveKind::kAllGather,
                  .name = "all_gather",
                  .input = BlockSet::kOwn,
                  .output = BlockSet::kAll,
                  .variable = VariableForm::kPlan},
    CollectiveRow{.kind = CollectiveKind::kReduceScatter,
                  .name = "reduce_scatter",
                  .input = BlockSet::kAll,
                  .output = BlockSet::kOwn,
                  .reduces = true,
                  .variable = VariableForm::kPlan},
    CollectiveRow{.kind = CollectiveKind::kAllToAll,
                  .name = "all_to_all",
                  .input = BlockSet::kAll,
                  .output = BlockSet::kAll,
                  .variable = VariableForm::kExchange},
    CollectiveRow{.kind = CollectiveKind::kGather,
                  .name = "gather",
                  .input = BlockSet::kOwn,
                  .output = BlockSet::kAll,
                  .root = RootHas::kTheOutput,
                  .variable = VariableForm::kExchange},
    CollectiveRow{.kind = CollectiveKind::kScatter,
                  .name = "scatter",
                  .input = BlockSet::kAll,
                  .output = BlockSet::kOwn,
                  .root = RootHas::kTheInput,
                  .variable = VariableForm::kExchange},
    CollectiveRow{.kind = CollectiveKind::kBarrier,
                  .name = "barrier",
                  .input = BlockSet::kOne,
                  .output = BlockSet::kOne,
                  .reduces = true,
                  .has_data = false},
    CollectiveRow{
        .kind = CollectiveKind::kSendReceive, .name = "send_recv", .input = BlockSet::kNone, .output = BlockSet::kNone},
};

static_assert([] {
  for (std::size_t i = 0; i < kCollectiveTable.size(); ++i) {
    if (static_cast<std::size_t>(kCollectiveTable[i].kind) != i) return false;
  }
  return true;
}());

// The row of a collective. For a value that is not a collective, for example from a damaged message, it is the row of
// kSendReceive, which has neither input nor output.
constexpr const CollectiveRow& row_of(CollectiveKind kind) {
  const auto row = static_cast<std::size_t>(kind);
  constexpr auto kNoBuffers = static_cast<std::size_t>(CollectiveKind::kSendReceive);
  return kCollectiveTable[row < kCollectiveTable.size() ? row : kNoBuffers];
}

// block_count(): the number of blocks of a buffer. first_block(): the number of the buffer's first block, which is
// the number of the rank to which that block belongs; 0 if the buffer holds one block that no rank owns.
constexpr std::uint32_t block_count(BlockSet set, std::uint32_t ranks) {
  return set == BlockSet::kNone ? 0 : set == BlockSet::kAll ? ranks : 1;
}
constexpr std::uint32_t first_block(BlockSet set, std::uint32_t rank) { return set == BlockSet::kOwn ? rank : 0; }

}  // namespace tutti
