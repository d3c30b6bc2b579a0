// A model is a row of layers: each takes the output of the one before. Every strategy leans on that: buckets are runs
// of layers, pipeline stages are, what is gathered at once is one, and what is computed again in backward is one.
//
// The values of a layer depend on the model's seed and the layer's place in the row only, so that any rank can make any
// layer alone, and on how many ranks share it (tensor parallel) not at all: a rank makes all of it and keeps its part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "train/parallel/comm.h"

namespace tutti::train {

// One parameter of a layer, as this rank has it.
struct Parameter {
  std::string name;
  Tensor tensor;
  std::vector<std::int64_t> whole;  // shape of the whole parameter, of which this is a part
  std::int64_t split_dim = -1;      // along which it is split over the tensor-parallel ranks; -1: every one has all
};

class Layer : public torch::nn::Module {
 public:
  virtual Tensor forward(Tensor input) = 0;
  const std::vector<Parameter>& parts() const { return parts_; }

 protected:
  // Makes `whole`, or this rank's part of it, a parameter of this layer.
  Tensor own(const std::string& name, const Tensor& whole, const Comm* split_over = nullptr, std::int64_t dim = -1);
  // The parameters of a module that every rank has as a whole.
  void own_all(const std::string& prefix, torch::nn::Module& module);

 private:
  std::vector<Parameter> parts_;
};

using Row = std::vector<std::shared_ptr<Layer>>;

// Part `index` of `parts` of `total`, in front of which are the longer ones.
struct Part {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
Part part_of(std::int64_t total, std::int64_t index, std::int64_t parts);

// Any module of libtorch's, or function, as a layer.
class PlainLayer : public Layer {
 public:
  explicit PlainLayer(torch::nn::Sequential body);
  Tensor forward(Tensor input) override { return body_->forward(input); }

 private:
  torch::nn::Sequential body_;
};

}  // namespace tutti::train
