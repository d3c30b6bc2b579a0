// Layout: the position of each chunk of a plan in the buffers of one call. When a plan runs on the host, its steps get
// all positions from a Layout, which converts blocks, counts and displacements to offsets. A Layout depends only on its
// constructor's arguments, so the ranks of a call agree on the number and the lengths of all chunks without
// communication. See collective.h for blocks and chunks, and tiling.h for the division of a block into chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"
#include "plan/tiling.h"

namespace tutti {

// Lengths of the blocks of one call, in elements.
struct Lengths {
  std::uint64_t count = 0;  // length of every block; ignored if `counts` is not empty
  // v-variants: the length of each rank's block, indexed by rank. All ranks must pass the same lengths. Empty in
  // the other calls.
  std::vector<std::uint64_t> counts;
  // v-variants: the start of each block, in elements, in the buffer that holds the blocks of all ranks, indexed by
  // rank. If it is empty, the blocks follow each other without gaps. Each rank may pass different displacements.
  std::vector<std::uint64_t> displacements;

  bool operator==(const Lengths&) const = default;
};

class Layout {
 public:
  // `rank` is the owner of the buffers. lengths.counts is empty or has one entry per rank. `max_message_bytes` is the
  // length of the longest message: a multiple of 64, at most 2^36, and at least one element. No chunk is longer than
  // longest_chunk_bytes() (tiling.h) of the plan's longest run.
  Layout(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths, std::size_t element_bytes,
         std::size_t max_message_bytes);

  // Number of tiles of the call. At least 1: a call without data still sends its messages, because receivers wait for
  // them.
  std::uint64_t tiles() const { return tiles_; }
  std::uint64_t max_chunk_count() const { return max_chunk_count_; }  // number of elements of the longest chunk

  // Position and length of a chunk of one tile in this rank's input (or output), in elements from the start of the
  // buffer.
  Extent input(std::uint64_t tile, std::uint32_t chunk) const;
  Extent output(std::uint64_t tile, std::uint32_t chunk) const;
  // Position and length of a chunk of a tile within its block. `chunk` is its number within the block. The same for all
  // blocks, so it must not be called for v-variants. The length is 0 if the call has no data.
  Extent block_chunk(std::uint64_t tile, std::uint32_t chunk) const;
  // Position and length of a chunk in the output of `peer`, if that rank passes no displacements. (Displacements
  // of a peer are not known here.)
  Extent output_of(std::uint32_t peer, std::uint64_t tile, std::uint32_t chunk) const;

  // Number of elements of a buffer that consists of `blocks` without gaps: the sum of the lengths of these blocks.
  // Displacements are ignored.
  std::uint64_t length(const Blocks& blocks) const;

 private:
  const Tiling& tiling(std::uint32_t rank) const { return tilings_.size() == 1 ? tilings_[0] : tilings_[rank]; }
  Extent extent(const Blocks& blocks, const std::vector<std::uint64_t>& starts, std::uint64_t tile,
                std::uint32_t chunk) const;

  Collective collective_;
  std::uint32_t chunks_;
  Blocks input_;
  Blocks output_;
  std::uint64_t count_;
  std::vector<Tiling> tilings_;  // one entry that is valid for all blocks, or, in v-variants, one for each rank's block
  // v-variants: the start of each block in a buffer without gaps, followed by the end of the last block. Empty in
  // other calls.
  std::vector<std::uint64_t> contiguous_;
  std::vector<std::uint64_t> displacements_;  // Lengths::displacements of this rank; may be empty
  std::uint64_t tiles_ = 1;
  std::uint64_t max_chunk_count_ = 0;
};

}  // namespace tutti
