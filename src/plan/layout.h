// Layout: the position of each chunk of a plan in the buffers of one call. This is the only code that converts
// blocks, counts and displacements to offsets. A Layout is a pure function of its constructor's arguments, so all
// ranks of a call compute consistent ones. See collective.h for blocks and chunks, and tiling.h for the division
// of a block into chunks.
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
  std::uint64_t count = 0;  // length of every block; used if `counts` is empty
  // v-variants: the length of each rank's block, indexed by rank. The same on all ranks.
  std::vector<std::uint64_t> counts;
  // v-variants: the start of each block in the buffer that holds the blocks of all ranks, indexed by rank. If it
  // is empty, the blocks follow each other without gaps. Each rank may have displacements of its own.
  std::vector<std::uint64_t> displacements;

  bool operator==(const Lengths&) const = default;
};

class Layout {
 public:
  // `rank` is this rank. lengths.counts is empty or has one entry per rank.
  Layout(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths, std::size_t element_bytes,
         std::size_t max_chunk_bytes);

  std::uint64_t tiles() const { return tiles_; }  // At least 1, because an empty call still exchanges its messages.
  std::uint64_t max_chunk_count() const { return max_chunk_count_; }  // elements of the longest chunk

  // Position of a chunk in this rank's buffers, in elements from the start of the buffer.
  Extent input(std::uint64_t tile, std::uint32_t chunk) const;
  Extent output(std::uint64_t tile, std::uint32_t chunk) const;
  // Position of a chunk in the output of a peer that uses no displacements.
  Extent output_of(std::uint32_t peer, std::uint64_t tile, std::uint32_t chunk) const;

  // Number of elements from the start to the end of a buffer that consists of `blocks` without gaps. Displacements
  // are ignored.
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
  std::vector<Tiling> tilings_;  // one for all ranks, or one for each rank
  // v-variants: the start of each block if there are no displacements, followed by the end of the last one
  std::vector<std::uint64_t> contiguous_;
  std::vector<std::uint64_t> displacements_;  // start of each block in this rank's buffer of all blocks; may be empty
  std::uint64_t tiles_ = 1;
  std::uint64_t max_chunk_count_ = 0;
};

}  // namespace tutti
