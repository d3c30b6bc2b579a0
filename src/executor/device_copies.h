// Block copies for the copy engines of a GPU, which need no multiprocessor and so do not slow down a computation
// beside them. For a collective that only moves blocks, they replace a plan: each rank copies blocks from the inputs
// of all ranks to its own output. Ranks only read from each other, so a failed call never writes into the memory of
// another rank. There are no steps: nothing is forwarded, and the copies of a call do not wait for each other. A
// test checks that the result equals that of the plans. Pure functions.
//
// Cost for P ranks and blocks of b bytes. all_gather, all_to_all: (P - 1) b bytes in and out of each rank.
// broadcast, scatter: (P - 1) b bytes out of the root, a load that trees and rings spread over the ranks. gather: (P
// - 1) b bytes into the root.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

struct BlockCopy {
  std::uint32_t peer = 0;  // the rank to read from; may be this rank
  std::uint64_t from = 0;  // offset in the peer's input, in bytes
  std::uint64_t to = 0;    // offset in this rank's output, in bytes
  std::uint64_t bytes = 0;

  bool operator==(const BlockCopy&) const = default;
};

// Whether copies alone can carry out the collective.
bool only_moves_blocks(CollectiveKind kind);

// Returns the copies that `rank` makes. It starts with the next higher rank, so that not all ranks read from the
// same peer at the same time. Requires only_moves_blocks(collective.kind). block_bytes: length of the whole buffer
// of a broadcast, otherwise of one rank's block. For in-place calls the copies are correct for all collectives
// except all_to_all, which would overwrite blocks that are still to be read.
std::vector<BlockCopy> block_copies(const Collective& collective, std::uint32_t rank, std::uint64_t block_bytes);

}  // namespace tutti
