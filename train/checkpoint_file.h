// One rank's file of a checkpoint: a header in JSON that says which elements of which parameters follow, and the
// elements as float32. Values are read in pieces, so that other ranks, of another number or strategy, can put together
// what they need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

// A run of elements. kind: "value", "moment0", "moment1", "buffer".
struct StoredPiece {
  Piece piece;
  std::int64_t split_index = 0;  // which part of the parameter the piece is of
  std::string kind;
  Tensor elements;          // float32 [piece.length], on a processor; when read: undefined until it is asked for
  std::int64_t offset = 0;  // in the file, bytes
};

struct FileSeal {
  std::int64_t bytes = 0;
  std::uint32_t crc = 0;  // CRC-32 of all of them
};

// Written, and on the disk when this returns. Throws Failure: no room, no permission.
FileSeal write_pieces(const std::string& path, const std::vector<StoredPiece>& pieces);

// The pieces without elements. Throws Failure: the file is not what the seal says, or none of ours.
std::vector<StoredPiece> read_pieces(const std::string& path, const FileSeal& seal);
Tensor read_elements(const std::string& path, const StoredPiece& piece);

std::uint32_t crc_of(const std::string& text);

// A small file as a whole, as above.
void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

}  // namespace tutti::train
