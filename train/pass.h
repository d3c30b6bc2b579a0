// One pass of a micro-batch through a row of layers: forward keeps each layer's input and output apart, so that
// backward can go layer by layer, and say between two layers which gradients are there.
//
// With recompute a layer's forward keeps its input only, and is done again in backward (activation checkpointing: Chen
// et al., 2016); with a spill that input waits in a file, or for a GPU in the host's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/layer.h"
#include "train/parallel/replicas.h"

namespace tutti::train {

enum class Precision : std::uint8_t {
  kFloat32,
  kBfloat16,  // libtorch's autocast: matrix products and convolutions in bfloat16, values and gradients in float32
  kFloat16,   // layers compute in float32, and what goes from one to the next, gradients too, is rounded to float16
};

// Where inputs wait between forward and backward: an unlinked file in `folder`, first in, last out or any order.
class Spill {
 public:
  // Throws Failure where no file can be made there.
  explicit Spill(const std::string& folder);
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;
  struct Slot {
    std::int64_t at = 0;
    std::vector<std::int64_t> shape;
    torch::ScalarType type = torch::kFloat32;
    std::int64_t bytes = 0;
  };
  Slot put(const Tensor& values);  // throws Failure: the disk is full
  Tensor get(const Slot& slot);

 private:
  int fd_ = -1;
  std::int64_t end_ = 0;
  std::int64_t waiting_ = 0;  // slots; when none does the file is used from its beginning
};

struct PassOptions {
  Precision precision = Precision::kFloat32;
  bool recompute = false;
  Spill* spill = nullptr;  // with recompute
  bool to_host = false;    // with recompute, on a GPU: inputs wait in the host's memory
};

class Pass {
 public:
  Pass(const Row& row, Replicas& replicas, const PassOptions& options)
      : row_(row), replicas_(replicas), options_(options) {}

  // The row's output, which is a leaf: give its gradient to backward(). `input` may be a leaf of somebody's, or data.
  Tensor forward(const Tensor& input);
  // The gradient of the row's input; undefined where that is data. `last`: see Replicas.
  Tensor backward(Tensor gradient, bool last);

 private:
  struct Kept {
    Tensor input;
    Tensor output;                // undefined: to be computed again
    bool wants_gradient = false;  // the input
    std::optional<Spill::Slot> slot;
  };
  Tensor run(std::size_t layer, const Tensor& input) const;
  void keep_input(Kept& kept, const Tensor& input) const;
  void restore_input(Kept& kept) const;

  const Row& row_;
  Replicas& replicas_;
  PassOptions options_;
  std::vector<Kept> kept_;
};

// Forward alone, nothing kept.
Tensor infer(const Row& row, Replicas& replicas, Precision precision, Tensor input);

}  // namespace tutti::train
