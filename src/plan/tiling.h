// Tiling: divides one block of a call's buffer into tiles and chunks. A pure function of (count, element size,
// chunks, slot size), so all ranks of a call compute the same one.
//
// A block of `count` elements is divided into tiles, and each tile into `chunks` chunks of nearly equal length.
// Lengths differ by at most one alignment unit, and the last chunks may be shorter or empty. An alignment unit is
// the largest whole number of elements that fits into 64 bytes, but at least one element. No chunk is longer than
// `max_chunk_bytes`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// The elements [offset, offset + count) of an input buffer, an output buffer or a scratch area.
struct Extent {
  std::uint64_t offset = 0;  // in elements
  std::uint64_t count = 0;   // in elements

  bool operator==(const Extent&) const = default;
};

class Tiling {
 public:
  // element_bytes is 1 .. max_chunk_bytes, chunks is at least 1, and max_chunk_bytes is a multiple of 64. If count
  // is 0, there are no tiles.
  Tiling(std::uint64_t count, std::size_t element_bytes, std::uint32_t chunks, std::size_t max_chunk_bytes);

  std::uint64_t tiles() const { return tiles_; }
  std::uint32_t chunks() const { return chunks_; }
  std::uint64_t max_chunk_count() const { return chunk_count_; }  // elements of the longest chunk
  Extent extent(std::uint64_t tile, std::uint32_t chunk) const;

  bool operator==(const Tiling&) const = default;

 private:
  // How the alignment units of one tile are divided among its chunks: the first `longer` chunks get `units` + 1
  // units each, the others `units`.
  struct Split {
    std::uint64_t units = 0;
    std::uint64_t longer = 0;

    bool operator==(const Split&) const = default;
  };
  std::uint64_t count_ = 0;
  std::uint64_t unit_count_ = 1;  // elements of one alignment unit
  std::uint32_t chunks_ = 1;
  std::uint64_t tiles_ = 0;
  std::uint64_t tile_units_ = 0;  // alignment units of every tile except the last
  std::uint64_t chunk_count_ = 0;
  Split full_;  // every tile except the last
  Split last_;
};

}  // namespace tutti
