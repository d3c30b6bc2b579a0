// Pass: the forward and backward pass of one micro-batch through a sequence of layers. The forward pass saves the input
// and the output of each layer separately. So the backward pass can go layer by layer, and can report after each layer
// that the gradients of that layer are complete. The communication of these gradients can then overlap with the rest.
//
// With PassOptions::recompute the forward pass of a layer, except the last one, saves only its input, and the backward
// pass runs the layer forward again (activation checkpointing: Chen et al., 2016). The saved inputs can be moved to a
// file, or from a GPU to host memory.
//
// One thread uses a Pass.
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
  // libtorch's autocast: matrix products and convolutions in bfloat16, parameters and their gradients in float32.
  kBfloat16,
  // Layers compute in float32. The output of each layer, and its gradient, are rounded to float16.
  kFloat16,
};

// OffloadFile: stores the inputs of layers between the forward and the backward pass in an unlinked temporary file in
// `folder`. Tensors can be read in any order, each one once.
class OffloadFile {
 public:
  // Throws Failure if the file cannot be created.
  explicit OffloadFile(const std::string& folder);
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;
  struct Slot {
    std::int64_t at = 0;
    std::vector<std::int64_t> shape;
    torch::ScalarType type = torch::kFloat32;
    std::int64_t bytes = 0;
  };
  Slot put(const Tensor& values);  // throws Failure, for example if the disk is full
  // Reads the tensor and releases its slot: call it once for each put().
  Tensor get(const Slot& slot);

 private:
  int fd_ = -1;
  std::int64_t end_ = 0;
  // Number of slots that have not been read yet. When it becomes 0, the file is reused from its beginning, so that it
  // does not grow.
  std::int64_t waiting_ = 0;
};

struct PassOptions {
  Precision precision = Precision::kFloat32;
  bool recompute = false;
  // the file for saved inputs; only with recompute; null: they stay in memory
  OffloadFile* offload_file = nullptr;
  // without an offload_file: saved inputs are moved to host memory; only with recompute on a GPU
  bool to_host = false;
};

class Pass {
 public:
  Pass(const Layers& layers, Replicas& replicas, const PassOptions& options)
      : layers_(layers), replicas_(replicas), options_(options) {}

  // Returns the output of the last layer as a leaf tensor, so that its gradient can be computed and passed to
  // backward(). `input` may require a gradient (the output of another pipeline stage), or be data.
  Tensor forward(const Tensor& input);
  // Returns the gradient of the input of the first layer, or an undefined tensor if the input is data. `last`: this
  // is the last pass of the step (see Replicas::end_backward).
  Tensor backward(Tensor gradient, bool last);

 private:
  struct SavedLayer {
    Tensor input;
    // undefined if the backward pass has to compute it again
    Tensor output;
    // whether the backward pass needs the gradient of the input
    bool wants_gradient = false;
    // position of the input in the offload file; empty: it was not written there
    std::optional<OffloadFile::Slot> slot;
  };
  Tensor run(std::size_t layer, const Tensor& input) const;
  void save_input(SavedLayer& saved, const Tensor& input) const;
  void restore_input(SavedLayer& saved) const;

  const Layers& layers_;
  Replicas& replicas_;
  PassOptions options_;
  std::vector<SavedLayer> saved_;
};

// The forward pass only, to evaluate the model on test data: nothing is saved for a backward pass.
Tensor infer(const Layers& layers, Replicas& replicas, Precision precision, Tensor input);

}  // namespace tutti::train
