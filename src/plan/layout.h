// Layout: where the chunks of a plan lie in one call's buffers; the only place that turns blocks, counts and
// displacements into offsets. A pure function of (shape, lengths, element size, slot size), so all ranks of a call
// compute the same one. See collective.h for blocks and chunks, tiling.h for how a block is cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"
#include "plan/tiling.h"

namespace tutti {

// How long the blocks of one call are, in elements.
struct Lengths {
  std::uint64_t count = 0;  // of every block, where `counts` is empty
  // v-variants: by rank; the same on all ranks.
  std::vector<std::uint64_t> counts;
  // v-variants: where each block starts in this rank's buffer of all blocks; empty: one after the other. Each rank's
  // own affair.
  std::vector<std::uint64_t> displacements;

  bool operator==(const Lengths&) const = default;
};

class Layout {
 public:
  // `rank` is this rank. lengths.counts is empty or has one entry per rank.
  Layout(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths, std::size_t element_bytes,
         std::size_t max_chunk_bytes);

  std::uint64_t tiles() const { return tiles_; }  // at least 1: an empty call still exchanges its messages
  std::uint64_t max_chunk_count() const { return max_chunk_count_; }  // elements of the longest chunk

  // Of this rank's buffers, in elements from the buffer's start.
  Extent input(std::uint64_t tile, std::uint32_t chunk) const;
  Extent output(std::uint64_t tile, std::uint32_t chunk) const;
  // Of the output of a peer that gave no displacements.
  Extent output_of(std::uint32_t peer, std::uint64_t tile, std::uint32_t chunk) const;

  // Elements from the start of a buffer of `blocks` to its end, displacements left aside.
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
  std::vector<Tiling> tilings_;               // one, or one for each rank
  std::vector<std::uint64_t> contiguous_;     // v-variants: starts of the blocks without displacements, and the end
  std::vector<std::uint64_t> displacements_;  // of this rank's buffer of all blocks
  std::uint64_t tiles_ = 1;
  std::uint64_t max_chunk_count_ = 0;
};

}  // namespace tutti
