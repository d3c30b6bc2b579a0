#include "train/models.h"

#include <cmath>
#include <functional>
#include <mutex>

#include "tools/common/messages.h"
#include "train/parallel/tensor_parallel.h"

namespace tutti::train {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr std::int64_t kHidden = 128;  // width of the hidden fully connected layer of cnn
constexpr std::int64_t kHeads = 4;     // attention heads of vit and gpt

// A function that creates one layer. If the layer can be split, the given tensor-parallel ranks split it; null: it is
// not split.
using Maker = std::function<std::shared_ptr<Layer>(Comm*)>;

std::shared_ptr<Layer> plain(nn::Sequential body) { return std::make_shared<PlainLayer>(std::move(body)); }

// ---- cnn

// fc 128, relu, fc 10. Tensor-parallel ranks split the first matrix by columns and the second by rows, so that the
// forward pass only has to sum the output over the ranks.
class Classifier : public Layer {
 public:
  Classifier(std::int64_t inputs, std::int64_t hidden, std::int64_t outputs, Comm* ranks) : ranks_(ranks) {
    const nn::Linear first(inputs, hidden);
    const nn::Linear second(hidden, outputs);
    weight_in_ = own("in.weight", first->weight, ranks, 0);
    bias_in_ = own("in.bias", first->bias, ranks, 0);
    weight_out_ = own("out.weight", second->weight, ranks, 1);
    bias_out_ = own("out.bias", second->bias);
  }
  Tensor forward(Tensor input) override {
    const Tensor hidden = torch::relu(F::linear(same_input(input.flatten(1), ranks_), weight_in_, bias_in_));
    return sum_of_parts(F::linear(hidden, weight_out_), ranks_) + bias_out_;
  }

 private:
  Comm* ranks_;
  Tensor weight_in_, bias_in_, weight_out_, bias_out_;
};

std::vector<Maker> cnn() {
  return {
      [](Comm*) { return plain(nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 3)), nn::ReLU())); },
      [](Comm*) {
        return plain(nn::Sequential(nn::Conv2d(nn::Conv2dOptions(32, 64, 3)), nn::ReLU(),
                                    nn::MaxPool2d(nn::MaxPool2dOptions(2))));
      },
      [](Comm* ranks) { return std::make_shared<Classifier>(9216, kHidden, 10, ranks); },
  };
}

// ---- resnet

enum class Norm : std::uint8_t { kGroup, kBatch };

nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

void add_norm(nn::Sequential& body, Norm norm, std::int64_t channels) {
  if (norm == Norm::kBatch) body->push_back(nn::BatchNorm2d(channels));
  if (norm == Norm::kGroup) body->push_back(nn::GroupNorm(nn::GroupNormOptions(8, channels)));
}

// Two convolutions and a parallel shortcut. The shortcut is the identity, or a 1 x 1 convolution if the shape
// changes. Source: He et al., 2015.
class ResidualBlock : public Layer {
 public:
  ResidualBlock(std::int64_t from, std::int64_t to, std::int64_t stride, Norm norm) {
    body_->push_back(convolution(from, to, stride));
    add_norm(body_, norm, to);
    body_->push_back(nn::ReLU());
    body_->push_back(convolution(to, to, 1));
    add_norm(body_, norm, to);
    register_module("body", body_);
    own_all("body.", *body_);
    if (from == to) return;
    shortcut_->push_back(nn::Conv2d(nn::Conv2dOptions(from, to, 1).stride(stride).bias(false)));
    register_module("shortcut", shortcut_);
    own_all("shortcut.", *shortcut_);
  }
  Tensor forward(Tensor input) override {
    return torch::relu(body_->forward(input) + (shortcut_->is_empty() ? input : shortcut_->forward(input)));
  }

 private:
  nn::Sequential body_;
  nn::Sequential shortcut_;
};

std::vector<Maker> resnet(Norm norm) {
  std::vector<Maker> layers = {[norm](Comm*) {
    nn::Sequential stem(convolution(1, 16, 1));
    add_norm(stem, norm, 16);
    stem->push_back(nn::ReLU());
    return plain(stem);
  }};
  const std::int64_t channels[] = {16, 16, 32, 64};
  for (int i = 0; i < 3; ++i) {
    layers.push_back([=, from = channels[i], to = channels[i + 1]](Comm*) {
      return std::make_shared<ResidualBlock>(from, to, from == to ? 1 : 2, norm);
    });
  }
  layers.push_back([](Comm*) {
    return plain(
        nn::Sequential(nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions(1)), nn::Flatten(), nn::Linear(64, 10)));
  });
  return layers;
}

// ---- transformers

Tensor normal(std::initializer_list<std::int64_t> shape, double deviation = 0.02) {
  return torch::randn(shape) * deviation;
}

// A transformer block: attention and a two-layer network, each with a layer norm before it and a shortcut around it.
// The rows of the attention matrix are ordered by head (for each head: query, key, value), so that each
// tensor-parallel rank gets whole heads.
class Block : public Layer {
 public:
  Block(std::int64_t width, std::int64_t heads, std::int64_t blocks, bool causal, Comm* ranks)
      : ranks_(ranks), head_width_(width / heads), causal_(causal) {
    // `last`: the standard deviation of the initial values of the two matrices whose results are added to a shortcut.
    // It is smaller in deeper models, as in GPT-2, because the shortcuts add up the outputs of all blocks.
    const double last = 0.02 / std::sqrt(2.0 * static_cast<double>(blocks));
    scale_1_ = own("norm_1.weight", torch::ones({width}));
    shift_1_ = own("norm_1.bias", torch::zeros({width}));
    heads_in_ = own("attention.weight", normal({3 * width, width}), ranks, 0);
    heads_bias_ = own("attention.bias", torch::zeros({3 * width}), ranks, 0);
    heads_out_ = own("projection.weight", normal({width, width}, last), ranks, 1);
    projection_bias_ = own("projection.bias", torch::zeros({width}));
    scale_2_ = own("norm_2.weight", torch::ones({width}));
    shift_2_ = own("norm_2.bias", torch::zeros({width}));
    up_ = own("up.weight", normal({4 * width, width}), ranks, 0);
    up_bias_ = own("up.bias", torch::zeros({4 * width}), ranks, 0);
    down_ = own("down.weight", normal({width, 4 * width}, last), ranks, 1);
    down_bias_ = own("down.bias", torch::zeros({width}));
  }
  // [batch, length, width] -> [batch, length, width]
  Tensor forward(Tensor input) override {
    const Tensor normed = torch::layer_norm(input, {input.size(2)}, scale_1_, shift_1_);
    const Tensor attended = F::linear(attention(same_input(normed, ranks_)), heads_out_);
    const Tensor middle = input + (sum_of_parts(attended, ranks_) + projection_bias_);
    const Tensor again = torch::layer_norm(middle, {input.size(2)}, scale_2_, shift_2_);
    const Tensor hidden = torch::gelu(F::linear(same_input(again, ranks_), up_, up_bias_));
    return middle + (sum_of_parts(F::linear(hidden, down_), ranks_) + down_bias_);
  }

 private:
  Tensor attention(const Tensor& input) const {
    const auto batch = input.size(0);
    const auto length = input.size(1);
    const Tensor all = F::linear(input, heads_in_, heads_bias_).view({batch, length, -1, 3, head_width_});
    // The queries (0), keys (1) or values (2) of all heads of this rank: [batch, heads, length, head width].
    const auto part = [&](int which) { return all.select(3, which).transpose(1, 2); };
    Tensor scores = torch::matmul(part(0), part(1).transpose(2, 3)) / std::sqrt(static_cast<double>(head_width_));
    if (causal_) {
      const Tensor later = torch::ones({length, length}, input.options().dtype(torch::kBool)).triu(1);
      scores = scores.masked_fill(later, -std::numeric_limits<float>::infinity());
    }
    const Tensor mixed = torch::matmul(torch::softmax(scores, -1), part(2));
    return mixed.transpose(1, 2).reshape({batch, length, -1});
  }

  Comm* ranks_;
  std::int64_t head_width_;
  bool causal_;
  Tensor scale_1_, shift_1_, heads_in_, heads_bias_, heads_out_, projection_bias_;
  Tensor scale_2_, shift_2_, up_, up_bias_, down_, down_bias_;
};

// [batch, length] of bytes -> [batch, length, width]
class ByteEmbedding : public Layer {
 public:
  explicit ByteEmbedding(std::int64_t width) {
    bytes_ = own("bytes.weight", normal({kBytes, width}));
    places_ = own("places.weight", normal({kContext, width}));
  }
  Tensor forward(Tensor input) override {
    return torch::embedding(bytes_, input) + places_.narrow(0, 0, input.size(1));
  }

 private:
  Tensor bytes_, places_;
};

// [batch, 1, 28, 28] -> [batch, 16, width]: each image is divided into 16 patches of 7 x 7 pixels.
class PatchEmbedding : public Layer {
 public:
  explicit PatchEmbedding(std::int64_t width) {
    weight_ = own("patches.weight", normal({width, 49}));
    bias_ = own("patches.bias", torch::zeros({width}));
    places_ = own("places.weight", normal({16, width}));
  }
  Tensor forward(Tensor input) override {
    const auto batch = input.size(0);
    const Tensor patches = input.view({batch, 4, 7, 4, 7}).permute({0, 1, 3, 2, 4}).reshape({batch, 16, 49});
    return F::linear(patches, weight_, bias_) + places_;
  }

 private:
  Tensor weight_, bias_, places_;
};

enum class Pool : std::uint8_t { kNone, kMean };

// The last layer of a transformer: a layer norm and a linear layer. With kMean the results of the layer norm are
// averaged over all positions before the linear layer, because a classifier needs one output for each image.
class Head : public Layer {
 public:
  Head(std::int64_t width, std::int64_t outputs, Pool pool) : pool_(pool) {
    scale_ = own("norm.weight", torch::ones({width}));
    shift_ = own("norm.bias", torch::zeros({width}));
    weight_ = own("head.weight", normal({outputs, width}));
    bias_ = own("head.bias", torch::zeros({outputs}));
  }
  Tensor forward(Tensor input) override {
    const Tensor normed = torch::layer_norm(input, {input.size(2)}, scale_, shift_);
    return F::linear(pool_ == Pool::kMean ? normed.mean(1) : normed, weight_, bias_);
  }

 private:
  Pool pool_;
  Tensor scale_, shift_, weight_, bias_;
};

std::vector<Maker> transformer(std::int64_t width, std::int64_t blocks, bool text) {
  std::vector<Maker> layers;
  if (text) layers.push_back([=](Comm*) { return std::make_shared<ByteEmbedding>(width); });
  if (!text) layers.push_back([=](Comm*) { return std::make_shared<PatchEmbedding>(width); });
  for (std::int64_t i = 0; i < blocks; ++i) {
    layers.push_back([=](Comm* ranks) { return std::make_shared<Block>(width, kHeads, blocks, text, ranks); });
  }
  layers.push_back(
      [=](Comm*) { return std::make_shared<Head>(width, text ? kBytes : 10, text ? Pool::kNone : Pool::kMean); });
  return layers;
}

std::vector<Maker> makers(ModelConfig config) {
  complete(config);
  if (config.name == "cnn") return cnn();
  if (config.name == "resnet") return resnet(Norm::kGroup);
  if (config.name == "resnet_bn") return resnet(Norm::kBatch);
  if (config.width % kHeads != 0) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "--width " + std::to_string(config.width) + " is no multiple of 4 heads");
  }
  if (config.name == "vit") return transformer(config.width, config.blocks, false);
  if (config.name == "gpt") return transformer(config.width, config.blocks, true);
  const std::vector<std::string> names = model_names();
  throw Failure(ErrorCode::kInvalidArgument,
                "model: " + tool::not_one_of(config.name, std::vector<std::string_view>(names.begin(), names.end())));
}

}  // namespace

std::vector<std::string> model_names() { return {"cnn", "resnet", "resnet_bn", "vit", "gpt"}; }
bool reads_text(const std::string& model) { return model == "gpt"; }
void complete(ModelConfig& config) {
  const bool transformer = config.name == "vit" || config.name == "gpt";
  const auto fill = [&](std::int64_t& value, std::int64_t usual) {
    if (!transformer) value = 0;
    if (transformer && value == 0) value = usual;
  };
  fill(config.width, config.name == "vit" ? 64 : 128);
  fill(config.blocks, 4);
}

std::int64_t shared_by_most(const ModelConfig& config) {
  if (config.name == "cnn") return kHidden;
  return config.name.starts_with("resnet") ? 1 : kHeads;
}
std::size_t layers_of(const ModelConfig& config) { return makers(config).size(); }

Layers make_layers(const ModelConfig& config, std::size_t first, std::size_t last, Comm* tensor) {
  // Ranks may be threads of one process, but the process has only one default random generator of libtorch. So only one
  // rank at a time may create layers.
  static std::mutex generator;
  const std::lock_guard lock(generator);
  const std::vector<Maker> all = makers(config);
  Layers layers;
  for (std::size_t i = first; i < last; ++i) {
    // A seed for each layer, so that its values do not depend on which other layers this rank creates.
    torch::manual_seed(config.seed * 1'000'003 + i);
    layers.push_back(all.at(i)(tensor));
  }
  return layers;
}

}  // namespace tutti::train
