// Buckets of parameters that are stored in one contiguous tensor. Values that are communicated in one call are stored
// together: a bucket is a run of consecutive layers. Their parameters are views into one flat tensor, and their
// gradients are views into another one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/layer.h"

namespace tutti::train {

// A range of elements of one parameter (as this rank holds it), and their position in a flat tensor.
struct ParameterSlice {
  std::string name;                 // name of the parameter: "layer.3/up.weight"
  std::vector<std::int64_t> whole;  // shape of the whole parameter
  std::vector<std::int64_t> part;   // shape of this rank's part of the parameter
  // The dimension along which tensor-parallel ranks split the parameter; -1: they do not split it.
  std::int64_t split_dim = -1;
  std::int64_t begin = 0;  // index of the slice's first element in this rank's part, flattened in C order
  // Index of the slice's first element in the flat tensor of the bucket; in a result of slices_within(), relative to
  // the beginning of the range.
  std::int64_t at = 0;
  // number of elements of the slice
  std::int64_t length = 0;
};

// A bucket: layers `first` to `last`, both included, of the layers of this rank. `count` is the number of elements;
// `padded` is `count` rounded up to the multiple given to make_buckets(), so that the bucket can be divided into equal
// shards.
struct Bucket {
  std::size_t first = 0;
  std::size_t last = 0;
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::vector<ParameterSlice> slices;  // in the order of the layers; one for each parameter
};

// Divides the layers into buckets, starting with the last layer, where the backward pass begins. Each bucket has at
// least `bytes` bytes of float32 values (the last bucket, with the first layers, may be smaller). Layers without
// parameters are added to a neighbouring bucket. With bytes = 0 there is one bucket for each layer that has parameters.
// The result is empty if no layer has parameters. `first_index` is the index of the first layer in the model, for the
// names. `multiple`: the multiple to which the lengths of the buckets are padded, usually the number of ranks.
std::vector<Bucket> make_buckets(const Layers& layers, std::size_t first_index, std::int64_t bytes,
                                 std::int64_t multiple);

// Copies the values of the parameters into `flat`, and makes the parameters views of it.
void move_values(const Layers& layers, const Bucket& bucket, Tensor& flat);
// Makes the gradients of the parameters views of `flat`, so that the backward pass adds to it.
void bind_gradients(const Layers& layers, const Bucket& bucket, const Tensor& flat);
// Removes the gradients of the parameters, so that they do not refer to the flat tensor any more.
void forget_gradients(const Layers& layers, const Bucket& bucket);

// The slices of the flat elements [begin, begin + length). Their `at` is relative to `begin`.
std::vector<ParameterSlice> slices_within(const std::vector<ParameterSlice>& slices, std::int64_t begin,
                                          std::int64_t length);

}  // namespace tutti::train
