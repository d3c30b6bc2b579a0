#include "train/needed_memory.h"

#include <fmt/format.h>

#include "train/parallel/comm.h"

namespace tutti::train {
namespace {

constexpr std::uint64_t kRankBytes = std::uint64_t{64} << 20;  // memory of a process with libtorch, without tensors
constexpr std::uint64_t kFloatBytes = 4;

// Estimates the number of values of one sample that layers save for the backward pass. A block of width w with t
// positions saves the inputs and outputs of its matrices (16 * w * t values), and three attention matrices of t * t
// values for each head.
std::uint64_t saved_values(const ModelConfig& model) {
  if (model.width == 0) return 0;  // the convolutional models save little, which is not counted
  constexpr std::uint64_t kAttentionHeads = 4;
  const std::uint64_t places = reads_text(model.name) ? kContext : 16;
  const auto width = static_cast<std::uint64_t>(model.width);
  return static_cast<std::uint64_t>(model.blocks) * (16 * width * places + 3 * kAttentionHeads * places * places);
}

// The number of copies of the weights, gradients and optimizer state that all ranks hold together, approximately.
struct Copies {
  std::uint64_t weights;
  std::uint64_t gradients;
  std::uint64_t optimizer;
};

Copies copies_of(const TrainOptions& options) {
  const auto data = static_cast<std::uint64_t>(data_ranks(options));
  switch (options.strategy) {
    case Strategy::kDdp: return {.weights = data, .gradients = data, .optimizer = data};
    case Strategy::kZero1: return {.weights = data, .gradients = data, .optimizer = 1};
    case Strategy::kZero2: return {.weights = data, .gradients = 1, .optimizer = 1};
    case Strategy::kZero3: return {.weights = 1, .gradients = 1, .optimizer = 1};
    case Strategy::kMics: {
      const std::uint64_t sets = data / static_cast<std::uint64_t>(options.group);
      return {.weights = sets, .gradients = sets, .optimizer = sets};
    }
    case Strategy::kServer: return {.weights = data, .gradients = data, .optimizer = 1};
  }
  return {.weights = data, .gradients = data, .optimizer = data};
}

}  // namespace

std::int64_t parameters_of(const ModelConfig& model) {
  if (model.name == "cnn") return 1'199'882;
  if (model.width == 0) return 77'562;  // resnet and resnet_bn, the only other models without a width
  const std::int64_t width = model.width;
  const std::int64_t blocks = model.blocks * (12 * width * width + 13 * width);
  const std::int64_t outputs = reads_text(model.name) ? kBytes : 10;
  const std::int64_t embedding = reads_text(model.name) ? (kBytes + kContext) * width : (49 + 1 + 16) * width;
  return embedding + blocks + 2 * width + outputs * width + outputs;
}

std::uint64_t needed_bytes(const TrainOptions& options) {
  // SGD keeps its moment also if --momentum is 0.
  const std::uint64_t states = options.optimizer == OptimizerType::kAdamW ? 2 : 1;
  const Copies copies = copies_of(options);
  const std::uint64_t values = copies.weights + copies.gradients + copies.optimizer * states;
  const std::uint64_t state = values * static_cast<std::uint64_t>(parameters_of(options.model)) * kFloatBytes;
  const std::uint64_t saved = options.recompute ? 0 : saved_values(options.model) * kFloatBytes;
  const auto together = static_cast<std::uint64_t>(options.batch / options.accumulate);
  return static_cast<std::uint64_t>(options.ranks) * kRankBytes + state + saved * together;
}

void check_memory(const TrainOptions& options) {
  if (options.device != "cpu" || options.memory_bytes == 0) return;
  const std::uint64_t needed = needed_bytes(options);
  if (needed <= options.memory_bytes) return;
  const auto gib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  throw Failure(ErrorCode::kSystem,
                fmt::format("{} with {} parameters needs about {:.1f} GiB of memory on {} ranks, and {:.1f} GiB are "
                            "available: give it a smaller --width, --blocks or --batch, fewer ranks, or --strategy "
                            "zero3",
                            options.model.name, parameters_of(options.model), gib(needed), options.ranks,
                            gib(options.memory_bytes)));
}

}  // namespace tutti::train
