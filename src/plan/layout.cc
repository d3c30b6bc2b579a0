// Computes the position of a chunk: the start of its block in the buffer, plus its position in the block (Tiling).
#include "plan/layout.h"

#include <algorithm>

#include "base/assert.h"

namespace tutti {

Layout::Layout(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths, std::size_t element_bytes,
               std::size_t max_message_bytes)
    : collective_(shape.collective),
      chunks_(shape.chunks),
      input_(input_blocks(shape.collective, rank)),
      output_(output_blocks(shape.collective, rank)),
      count_(lengths.count),
      displacements_(lengths.displacements) {
  const std::size_t max_chunk_bytes = longest_chunk_bytes(max_message_bytes, shape.longest_run, element_bytes);
  if (lengths.counts.empty()) {
    tilings_.emplace_back(lengths.count, element_bytes, chunks_, max_chunk_bytes);
  } else {
    TUTTI_ASSERT(lengths.counts.size() == collective_.ranks);
    contiguous_.push_back(0);
    for (const std::uint64_t count : lengths.counts) {
      tilings_.emplace_back(count, element_bytes, chunks_, max_chunk_bytes);
      contiguous_.push_back(contiguous_.back() + count);
    }
  }
  for (const Tiling& each : tilings_) {
    tiles_ = std::max(tiles_, each.tiles());
    max_chunk_count_ = std::max(max_chunk_count_, each.max_chunk_count());
  }
}

Extent Layout::extent(const Blocks& blocks, const std::vector<std::uint64_t>& starts, std::uint64_t tile,
                      std::uint32_t chunk) const {
  const std::uint32_t block = chunk / chunks_;
  TUTTI_ASSERT(block < blocks.count, "chunk {} is in block {} of {}", chunk, block, blocks.count);
  const std::uint32_t rank = blocks.first + block;
  const Tiling& cut = tiling(rank);
  Extent extent;
  // The call has as many tiles as its longest block. If this block has fewer tiles, its chunks are empty in the
  // remaining ones.
  if (tile < cut.tiles()) extent = cut.extent(tile, chunk % chunks_);
  if (blocks.count > 1) extent.offset += starts.empty() ? rank * count_ : starts[rank];
  return extent;
}

Extent Layout::input(std::uint64_t tile, std::uint32_t chunk) const {
  return extent(input_, displacements_.empty() ? contiguous_ : displacements_, tile, chunk);
}

Extent Layout::output(std::uint64_t tile, std::uint32_t chunk) const {
  return extent(output_, displacements_.empty() ? contiguous_ : displacements_, tile, chunk);
}

Extent Layout::block_chunk(std::uint64_t tile, std::uint32_t chunk) const {
  TUTTI_ASSERT(contiguous_.empty() && chunk < chunks_);
  return tile < tilings_[0].tiles() ? tilings_[0].extent(tile, chunk) : Extent{};
}

Extent Layout::output_of(std::uint32_t peer, std::uint64_t tile, std::uint32_t chunk) const {
  return extent(output_blocks(collective_, peer), contiguous_, tile, chunk);
}

std::uint64_t Layout::length(const Blocks& blocks) const {
  if (contiguous_.empty()) return blocks.count * count_;
  return contiguous_[blocks.first + blocks.count] - contiguous_[blocks.first];
}

}  // namespace tutti
