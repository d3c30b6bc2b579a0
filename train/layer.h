// Layer: one layer of a model. A model is a sequence of layers, in which each layer takes the output of the layer
// before. All parallel strategies use this structure: a bucket of gradients is a run of consecutive layers, and so is
// a pipeline stage; fully sharded training gathers the values of a bucket before its layers are computed, and those of
// the next bucket meanwhile; and recomputing repeats the forward pass of one layer at a time during the backward pass.
//
// The initial values of a layer depend only on the ModelConfig, which contains a seed, and on the index of the layer.
// So any rank can create any layer alone. They do not depend on the number of tensor-parallel ranks, because each of
// these ranks creates the whole layer and keeps its own part of it.
//
// A layer is used by the thread of one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "train/parallel/comm.h"

namespace tutti::train {

// One parameter of a layer: the part of it that this rank holds.
struct Parameter {
  std::string name;
  Tensor tensor;
  // shape of the whole parameter, before it is split over ranks
  std::vector<std::int64_t> whole;
  // The dimension along which the tensor-parallel ranks split the parameter. -1: the parameter is not split, and each
  // tensor-parallel rank has all of it.
  std::int64_t split_dim = -1;
};

class Layer : public torch::nn::Module {
 public:
  virtual Tensor forward(Tensor input) = 0;
  // The parameters of this layer, in a fixed order: this rank's parts.
  const std::vector<Parameter>& parts() const { return parts_; }

 protected:
  // Registers a parameter of this layer, and returns it. With `split_over` and `dim` >= 0, this rank keeps only its
  // part along `dim`, by its rank in `split_over`. Throws Failure if the ranks cannot split that dimension into equal
  // parts.
  Tensor own(const std::string& name, const Tensor& whole, const Comm* split_over = nullptr, std::int64_t dim = -1);
  // Registers all parameters of `module`, without splitting them: each tensor-parallel rank has all of each.
  void own_all(const std::string& prefix, torch::nn::Module& module);

 private:
  std::vector<Parameter> parts_;
};

using Layers = std::vector<std::shared_ptr<Layer>>;

// The indices from `begin` up to, but not including, `begin` + `length`.
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
// The range of part `index` (from 0) if `total` elements are divided into `parts` parts. The lengths of the parts
// differ by at most 1, and the longer parts come first.
IndexRange range_of_part(std::int64_t total, std::int64_t index, std::int64_t parts);

// A layer that consists of modules or functions of libtorch. Tensor-parallel ranks never split it.
class PlainLayer : public Layer {
 public:
  explicit PlainLayer(torch::nn::Sequential body);
  Tensor forward(Tensor input) override { return body_->forward(input); }

 private:
  torch::nn::Sequential body_;
};

}  // namespace tutti::train
