// Copies in the place of a plan: of a collective that only moves blocks, what each rank has to copy from all ranks'
// inputs to its own output, for a GPU's copy engines, which take no multiprocessor from the computation beside them.
// Ranks pull: whatever becomes of a call, nobody writes into another one's memory. Not a plan of steps: nothing is
// forwarded and nothing waits between the copies of a call; the test compares what they leave with what the plans
// leave. Pure functions.
//
// all_gather and all_to_all: (P - 1) b bytes in and out of each rank for blocks of b bytes; broadcast and scatter:
// (P - 1) b out of the root, which trees and rings share out among the ranks; gather: (P - 1) b into the root.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

struct BlockCopy {
  std::uint32_t peer = 0;  // whose input; the rank itself too
  std::uint64_t from = 0;  // in the peer's input, bytes
  std::uint64_t to = 0;    // in this rank's output
  std::uint64_t bytes = 0;

  bool operator==(const BlockCopy&) const = default;
};

// Whether copies alone carry it out.
bool only_moves_blocks(CollectiveKind kind);

// Those that `rank` makes, the peers in the order that follows it, so that not all read from one at a time.
// only_moves_blocks(collective.kind); block_bytes: of a broadcast's whole buffer, else of one rank's block. In place
// all of them are right but those of all_to_all, which would overwrite what is still to be read.
std::vector<BlockCopy> block_copies(const Collective& collective, std::uint32_t rank, std::uint64_t block_bytes);

}  // namespace tutti
