// Tiling: how one block of a call's buffer is cut. A pure function of (count, element size, chunks, slot size), so all
// ranks of a call compute the same one.
//
// A block of `count` elements is cut into tiles, each tile into `chunks` chunks of nearly equal length (they differ
// by at most one alignment unit, and the last ones may be short or empty). An alignment unit is the most whole elements
// that fit into 64 bytes, at least one. No chunk is longer than `max_chunk_bytes`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// Elements [offset, offset + count) of input or output, or of one scratch area.
struct Extent {
  std::uint64_t offset = 0;  // elements
  std::uint64_t count = 0;   // elements

  bool operator==(const Extent&) const = default;
};

class Tiling {
 public:
  // element_bytes 1 .. max_chunk_bytes; chunks >= 1; max_chunk_bytes a multiple of 64. count may be 0: there are then
  // no tiles.
  Tiling(std::uint64_t count, std::size_t element_bytes, std::uint32_t chunks, std::size_t max_chunk_bytes);

  std::uint64_t tiles() const { return tiles_; }
  std::uint32_t chunks() const { return chunks_; }
  std::uint64_t max_chunk_count() const { return chunk_count_; }  // elements of the longest chunk
  Extent extent(std::uint64_t tile, std::uint32_t chunk) const;

  bool operator==(const Tiling&) const = default;

 private:
  // How one tile's alignment units fall on its chunks: the first `longer` chunks get `units` + 1, the others `units`.
  struct Split {
    std::uint64_t units = 0;
    std::uint64_t longer = 0;

    bool operator==(const Split&) const = default;
  };
  std::uint64_t count_ = 0;
  std::uint64_t unit_count_ = 1;  // elements of one alignment unit
  std::uint32_t chunks_ = 1;
  std::uint64_t tiles_ = 0;
  std::uint64_t tile_units_ = 0;  // alignment units of every tile but the last
  std::uint64_t chunk_count_ = 0;
  Split full_;  // every tile but the last
  Split last_;
};

}  // namespace tutti
