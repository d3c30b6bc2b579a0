// Divides a block in alignment units: the number of elements is rounded up to whole units, and the units are
// divided among tiles and chunks. At the end, the last chunk that has data is shortened to the exact number of
// elements.
#include "plan/tiling.h"

#include <algorithm>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::size_t kUnitBytes = 64;

std::uint64_t divide_up(std::uint64_t value, std::uint64_t divisor) { return value / divisor + (value % divisor != 0); }

}  // namespace

Tiling::Tiling(std::uint64_t count, std::size_t element_bytes, std::uint32_t chunks, std::size_t max_chunk_bytes)
    : count_(count), chunks_(chunks) {
  TUTTI_ASSERT(element_bytes >= 1 && element_bytes <= max_chunk_bytes, "an element has {} bytes", element_bytes);
  TUTTI_ASSERT(chunks >= 1);
  TUTTI_ASSERT(max_chunk_bytes > 0 && max_chunk_bytes % kUnitBytes == 0, "max_chunk_bytes is {}", max_chunk_bytes);
  TUTTI_ASSERT(max_chunk_bytes <= (std::size_t{1} << 36), "max_chunk_bytes is {}", max_chunk_bytes);
  unit_count_ = std::max<std::uint64_t>(kUnitBytes / element_bytes, 1);
  if (count == 0) return;

  const std::uint64_t units = divide_up(count, unit_count_);
  const std::uint64_t most_units_per_tile = std::uint64_t{chunks} * (max_chunk_bytes / (unit_count_ * element_bytes));
  // Use as few tiles as possible, and divide the units evenly among them. If all tiles except the last were as
  // long as possible, the last one could have only a few bytes, but its latency would be that of a full tile.
  tile_units_ = divide_up(units, divide_up(units, most_units_per_tile));
  tiles_ = divide_up(units, tile_units_);
  const std::uint64_t last_units = units - (tiles_ - 1) * tile_units_;
  full_ = {.units = tile_units_ / chunks, .longer = tile_units_ % chunks};
  last_ = {.units = last_units / chunks, .longer = last_units % chunks};
  // The first chunk of the first tile is the longest one: no tile is longer than the first tile, and in each tile
  // no chunk is longer than the first chunk.
  chunk_count_ = extent(0, 0).count;
}

std::size_t longest_chunk_bytes(std::size_t max_message_bytes, std::uint32_t longest_run, std::size_t element_bytes) {
  if (longest_run == 1) return max_message_bytes;
  const std::size_t least = divide_up(element_bytes, kUnitBytes) * kUnitBytes;
  return std::max(max_message_bytes / longest_run / kUnitBytes * kUnitBytes, least);
}

bool run_fits(std::size_t max_message_bytes, std::uint32_t longest_run, std::size_t element_bytes) {
  return longest_run * longest_chunk_bytes(max_message_bytes, longest_run, element_bytes) <= max_message_bytes;
}

Extent Tiling::extent(std::uint64_t tile, std::uint32_t chunk) const {
  TUTTI_ASSERT(tile < tiles_ && chunk < chunks_, "tile {} of {}, chunk {} of {}", tile, tiles_, chunk, chunks_);
  const Split& split = tile + 1 == tiles_ ? last_ : full_;
  const std::uint64_t first_unit =
      tile * tile_units_ + chunk * split.units + std::min<std::uint64_t>(chunk, split.longer);
  const std::uint64_t units = split.units + (chunk < split.longer ? 1 : 0);
  // Converted to elements, and limited to the end of the block. A chunk of the last tile can start after the end
  // of the block; it is then empty.
  const std::uint64_t begin = std::min(count_, first_unit * unit_count_);
  return {.offset = begin, .count = std::min(units * unit_count_, count_ - begin)};
}

}  // namespace tutti
