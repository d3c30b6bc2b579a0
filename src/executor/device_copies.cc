// Block copies for copy engines; see device_copies.h.
#include "executor/device_copies.h"

#include "base/assert.h"
#include "base/collective_table.h"

namespace tutti {

bool only_moves_blocks(CollectiveKind kind) { return !reduces(kind) && row_of(kind).output != BlockSet::kNone; }

std::vector<BlockCopy> block_copies(const Collective& collective, std::uint32_t rank, std::uint64_t block_bytes) {
  TUTTI_ASSERT(only_moves_blocks(collective.kind) && rank < collective.ranks && collective.root < collective.ranks);
  const CollectiveRow& row = row_of(collective.kind);
  const bool from_root = row.root == RootHas::kTheInput;
  const bool personal = row.input == BlockSet::kAll;
  std::vector<BlockCopy> copies;
  if (block_bytes == 0 || (row.root == RootHas::kTheOutput && rank != collective.root)) return copies;
  for (std::uint32_t i = 1; i <= collective.ranks; ++i) {
    const std::uint32_t peer = (rank + i) % collective.ranks;
    if (from_root && peer != collective.root) continue;
    copies.push_back({.peer = peer,
                      .from = personal ? rank * block_bytes : 0,
                      .to = from_root ? 0 : peer * block_bytes,
                      .bytes = block_bytes});
  }
  return copies;
}

}  // namespace tutti
