// Parameters side by side in one tensor. What travels together lies together: a bucket is a run of layers whose
// parameters are views into one flat tensor, and whose gradients are views into another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/layer.h"

namespace tutti::train {

// A run of one parameter's elements, as this rank has the parameter, and where they stand in a flat tensor.
struct Piece {
  std::string name;                 // of the parameter: "layer.3/up.weight"
  std::vector<std::int64_t> whole;  // shape of the whole parameter
  std::vector<std::int64_t> part;   // of this rank's part of it
  std::int64_t split_dim = -1;      // along which it is a part; -1: it is all of it
  std::int64_t begin = 0;           // in this rank's part, flat, row by row
  std::int64_t at = 0;              // in the flat tensor
  std::int64_t length = 0;
};

// Layers [first, last] of a row, counted in `count` elements; `padded` is a multiple of what it was made for.
struct Bucket {
  std::size_t first = 0;
  std::size_t last = 0;
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::vector<Piece> pieces;  // in the order of the layers
};

// Runs of layers from the end of the row (where backward begins) of `bytes` or more of float32 each; layers without
// parameters go with their neighbours. Empty where the row has no parameters. `first_index`: of row[0] in the model,
// for the names. bytes 0: a bucket for each layer with parameters.
std::vector<Bucket> make_buckets(const Row& row, std::size_t first_index, std::int64_t bytes, std::int64_t multiple);

// Copies the parameters' values into `flat`, and makes them views of it.
void move_values(const Row& row, const Bucket& bucket, Tensor& flat);
// Makes the parameters' gradients views of `flat`: backward adds to it.
void bind_gradients(const Row& row, const Bucket& bucket, const Tensor& flat);
void forget_gradients(const Row& row, const Bucket& bucket);

// The pieces of flat elements [begin, begin + length), with `at` counted from `begin`.
std::vector<Piece> pieces_within(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t length);

}  // namespace tutti::train
