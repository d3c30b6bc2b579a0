// The reference models, as rows of layers. Parameters counted with their defaults:
//   cnn        1,199,882  conv 32, conv 64, fc 128, fc 10 (PyTorch's MNIST example), without dropout
//   resnet        77,562  3 stages of residual blocks of 16, 32, 64 channels, with group norm: no sample depends on
//   others resnet_bn     77,562  the same with batch norm, whose running mean and variance are buffers vit 204,938  7 x
//   7 patches, width 64, 4 blocks gpt          867,328  bytes, context 64, width 128, 4 heads, 4 blocks (pre-norm)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/layer.h"

namespace tutti::train {

struct ModelConfig {
  std::string name = "cnn";
  std::uint64_t seed = 1;
  std::int64_t width = 0;   // of vit and gpt; 0: the default
  std::int64_t blocks = 0;  // of vit and gpt; 0: the default
};

std::vector<std::string> model_names();
bool reads_text(const std::string& model);  // the others classify images
// Fills in the default width and blocks; 0 for both where the model has none.
void complete(ModelConfig& config);
// Tensor-parallel ranks: as many as this, or a divisor.
std::int64_t shared_by_most(const ModelConfig& config);
std::size_t layers_of(const ModelConfig& config);

// Layers [first, last) of the row. `tensor`: the ranks that share each layer, or null; it outlives the row. Throws
// Failure: a model that is not one, layers that so many ranks cannot share.
Row make_layers(const ModelConfig& config, std::size_t first, std::size_t last, Comm* tensor);

inline constexpr std::int64_t kContext = 64;  // of gpt, in bytes
inline constexpr std::int64_t kBytes = 256;   // different ones

}  // namespace tutti::train
