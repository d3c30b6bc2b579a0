// The optimizer, over shards: it has state for what this rank keeps up to date, and for nothing else.
//   sgd     m = momentum * m + g;  w -= lr * m
//   adamw   m = 0.9 m + 0.1 g;  v = 0.999 v + 0.001 g^2;  w -= lr * (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) +
//   1e-8)
//           Source: Loshchilov & Hutter, 2019.
// Weight decay: w -= lr * decay * w before that, for both.
#pragma once

#include <cstdint>
#include <vector>

#include "train/options.h"
#include "train/parallel/replicas.h"

namespace tutti::train {

class Optimizer {
 public:
  Optimizer(OptimizerKind kind, double momentum, double weight_decay, const std::vector<Shard>& shards);

  void step(std::vector<Shard>& shards, double lr);

  // By shard: the first moments, and the second ones of adamw. Copied into to restore a state.
  std::vector<std::vector<Tensor>>& state() { return state_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  std::int64_t state_bytes() const;
  std::size_t moments() const { return kind_ == OptimizerKind::kSgd ? 1 : 2; }

 private:
  OptimizerKind kind_;
  double momentum_;
  double weight_decay_;
  std::int64_t steps_ = 0;
  std::vector<std::vector<Tensor>> state_;
};

// What float16 gradients are multiplied by so that small ones are not lost: halved when one has overflowed (that step
// is left out), doubled after 200 steps that went well. Source: Micikevicius et al., 2018.
class LossScaler {
 public:
  double scale() const { return scale_; }
  void overflowed();
  void went_well();
  bool hopeless() const { return scale_ < 1e-4; }  // it was halved again and again: the loss itself is not finite
  void restore(double scale, std::int64_t good_steps) { scale_ = scale, good_steps_ = good_steps; }
  std::int64_t good_steps() const { return good_steps_; }

 private:
  double scale_ = 65536;
  std::int64_t good_steps_ = 0;
};

}  // namespace tutti::train
