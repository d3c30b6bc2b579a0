// Tiling: divides one block of a call's buffer into tiles and chunks. A tiling depends only on the arguments of
// its constructor, so all ranks of a call compute the same one.
//
// A block of `count` elements is divided into as few tiles as possible, and each tile into `chunks` chunks of nearly
// equal length. Except at the end of the block, lengths are multiples of an alignment unit: the largest number of whole
// elements that fits into 64 bytes, but at least one element. The chunks of one tile differ by at most one alignment
// unit, before the last chunk with data is cut off at the end of the block. All tiles are equally long, except that the
// last tile may be shorter. If a tile has fewer alignment units than chunks, its last chunks are empty. No chunk is
// longer than `max_chunk_bytes`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// The elements [offset, offset + count) of a block (results of Tiling) or of a whole buffer (results of Layout).
struct Extent {
  std::uint64_t offset = 0;  // in elements, from the start of the block or buffer
  std::uint64_t count = 0;   // length, in elements

  bool operator==(const Extent&) const = default;
};

class Tiling {
 public:
  // `count` is the length of the block in elements. element_bytes is 1 .. max_chunk_bytes, chunks is at least 1,
  // and max_chunk_bytes is a multiple of 64 and at most 2^36. If count is 0, there are no tiles.
  Tiling(std::uint64_t count, std::size_t element_bytes, std::uint32_t chunks, std::size_t max_chunk_bytes);

  std::uint64_t tiles() const { return tiles_; }
  std::uint32_t chunks() const { return chunks_; }
  std::uint64_t max_chunk_count() const { return chunk_count_; }  // number of elements of the longest chunk
  Extent extent(std::uint64_t tile, std::uint32_t chunk) const;

  bool operator==(const Tiling&) const = default;

 private:
  // How the alignment units of one tile are divided among its chunks: each of the first `longer` chunks gets
  // `units` + 1 units, and each of the others gets `units` units.
  struct Split {
    std::uint64_t units = 0;
    std::uint64_t longer = 0;

    bool operator==(const Split&) const = default;
  };
  std::uint64_t count_ = 0;
  std::uint64_t unit_count_ = 1;  // number of elements of one alignment unit
  std::uint32_t chunks_ = 1;
  std::uint64_t tiles_ = 0;
  std::uint64_t tile_units_ = 0;  // number of alignment units of every tile except the last
  std::uint64_t chunk_count_ = 0;
  Split full_;  // the division of every tile except the last
  Split last_;  // the division of the last tile
};

// Returns the length that a chunk may have, in bytes (`max_chunk_bytes` of the constructor), so that a message with
// `longest_run` chunks has at most `max_message_bytes` bytes. If longest_run is 1, it is max_message_bytes. Otherwise
// it is max_message_bytes / longest_run, rounded down to a multiple of 64. But it is at least the length of one
// element, rounded up to a multiple of 64, because a chunk cannot be shorter. With this minimum, messages can be longer
// than max_message_bytes; run_fits() returns false then.
std::size_t longest_chunk_bytes(std::size_t max_message_bytes, std::uint32_t longest_run, std::size_t element_bytes);
// Whether a message with `longest_run` chunks of the length longest_chunk_bytes() has at most `max_message_bytes`
// bytes. If so, calls of any length can be divided into tiles whose messages fit. If not, only short calls have
// messages that fit.
bool run_fits(std::size_t max_message_bytes, std::uint32_t longest_run, std::size_t element_bytes);

}  // namespace tutti
