#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

namespace tutti::train {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEpsilon = 1e-8;
constexpr std::int64_t kBlockElements = 1 << 14;  // elements per block, so that temporary tensors are small
// Number of successful steps in a row after which the loss scale is doubled.
constexpr std::int64_t kGoodSteps = 200;

// One AdamW step. `steps` counts from 1, including this step. The bias corrections of both moments are applied to the
// divisor and the rate. Only the division needs temporaries; they are made for one block at a time.
void adamw(Tensor& values, const Tensor& gradients, std::vector<Tensor>& state, std::int64_t steps, double lr) {
  const double first = 1 - std::pow(kBeta1, static_cast<double>(steps));
  const double second = std::sqrt(1 - std::pow(kBeta2, static_cast<double>(steps)));
  state[0].mul_(kBeta1).add_(gradients, 1 - kBeta1);
  state[1].mul_(kBeta2).addcmul_(gradients, gradients, 1 - kBeta2);
  for (std::int64_t at = 0; at < values.numel(); at += kBlockElements) {
    const std::int64_t length = std::min(kBlockElements, values.numel() - at);
    const Tensor divisor = state[1].narrow(0, at, length).sqrt().div_(second).add_(kEpsilon);
    values.narrow(0, at, length).addcdiv_(state[0].narrow(0, at, length), divisor, -lr / first);
  }
}

}  // namespace

Optimizer::Optimizer(OptimizerType type, double momentum, double weight_decay, const std::vector<Shard>& shards)
    : type_(type), momentum_(momentum), weight_decay_(weight_decay) {
  for (const Shard& shard : shards) {
    std::vector<Tensor> moments;
    for (std::size_t i = 0; i < this->moments(); ++i)
      moments.push_back(torch::zeros(shard.values.sizes(), shard.values.options()));
    state_.push_back(std::move(moments));
  }
}

void Optimizer::step(std::vector<Shard>& shards, double lr) {
  const torch::NoGradGuard no_grad;
  ++steps_;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    Tensor& values = shards[i].values;
    if (weight_decay_ != 0) values.mul_(1 - lr * weight_decay_);
    if (type_ == OptimizerType::kAdamW) {
      adamw(values, shards[i].gradients, state_[i], steps_, lr);
    } else {
      state_[i][0].mul_(momentum_).add_(shards[i].gradients);
      values.add_(state_[i][0], -lr);
    }
  }
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& moments : state_) {
    for (const Tensor& moment : moments) bytes += static_cast<std::int64_t>(moment.nbytes());
  }
  return bytes;
}

void LossScaler::overflowed() {
  scale_ /= 2;
  good_steps_ = 0;
}

void LossScaler::step_succeeded() {
  if (++good_steps_ < kGoodSteps) return;
  scale_ = std::min(scale_ * 2, 16777216.0);
  good_steps_ = 0;
}

}  // namespace tutti::train
