// The reference models, each a sequence of layers. Numbers of parameters with the default width and blocks:
//   cnn        1,199,882  conv 32, conv 64, fc 128, fc 10 (PyTorch's MNIST example), without dropout
//   resnet        77,562  3 residual blocks with 16, 32, 64 channels. With group norm, so that the result of a sample
//                         does not depend on the other samples of the batch
//   resnet_bn     77,562  the same with batch norm, which has running mean and variance as buffers
//   vit          204,938  patches of 7 x 7 pixels, width 64, 4 blocks
//   gpt          867,328  bytes as tokens, context 64, width 128, 4 heads, 4 blocks (pre-norm)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/layer.h"

namespace tutti::train {

struct ModelConfig {
  std::string name = "cnn";
  std::uint64_t seed = 1;
  std::int64_t width = 0;   // only vit and gpt; 0 means the default (vit 64, gpt 128)
  std::int64_t blocks = 0;  // only vit and gpt; 0 means the default (4)
};

std::vector<std::string> model_names();
bool reads_text(const std::string& model);  // true for gpt; the other models classify images
// Replaces a width or number of blocks of 0 by the default. If the model has no such setting, it becomes 0.
void complete(ModelConfig& config);
// The largest number of tensor-parallel ranks that can share the layers of this model. The number of ranks must be a
// divisor of it.
std::int64_t shared_by_most(const ModelConfig& config);
// The number of layers of the model.
std::size_t layers_of(const ModelConfig& config);

// Creates layers [first, last) of the model. `tensor` contains the ranks that share each layer, or is null; it must
// outlive the layers. The number of these ranks must be a divisor of shared_by_most(), which is not checked here. Any
// thread may call this. Throws Failure if the name of the model is unknown, if the width is not a multiple of the
// number of heads, or if the ranks cannot split a parameter into equal parts.
Layers make_layers(const ModelConfig& config, std::size_t first, std::size_t last, Comm* tensor);

inline constexpr std::int64_t kContext = 64;  // context length of gpt, in bytes
inline constexpr std::int64_t kBytes = 256;   // number of tokens of gpt: the values of a byte

}  // namespace tutti::train
