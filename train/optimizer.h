// Optimizer: updates the shards of this rank. It has optimizer state only for the values that this rank updates.
//   sgd     m = momentum * m + g;  w -= lr * m
//   adamw   m = 0.9 m + 0.1 g;  v = 0.999 v + 0.001 g^2;
//           w -= lr * (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) + 1e-8), with t = number of the step, from 1
//           Source: Loshchilov & Hutter, 2019.
// For both, weight decay comes first: w -= lr * decay * w. One thread uses an Optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "train/options.h"
#include "train/parallel/replicas.h"

namespace tutti::train {

class Optimizer {
 public:
  Optimizer(OptimizerType type, double momentum, double weight_decay, const std::vector<Shard>& shards);

  // Updates the values of the shards with their gradients. `shards` must have the same number and lengths as those
  // given to the constructor.
  void step(std::vector<Shard>& shards, double lr);

  // The moments of each shard: state()[s][0] is the first moment of shard s and, for adamw, state()[s][1] is its second
  // moment. To restore a state, copy into these tensors.
  std::vector<std::vector<Tensor>>& state() { return state_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  std::int64_t state_bytes() const;
  std::size_t moments() const { return type_ == OptimizerType::kSgd ? 1 : 2; }

 private:
  OptimizerType type_;
  double momentum_;
  double weight_decay_;
  std::int64_t steps_ = 0;
  std::vector<std::vector<Tensor>> state_;
};

// Controls the factor by which the loss, and so the float16 gradients, are multiplied, so that small gradients do not
// become 0. The factor is halved when the loss or the gradient was not finite (that step is skipped), and doubled after
// kGoodSteps (optimizer.cc) successful steps in a row, up to 2^24. Source: Micikevicius et al., 2018.
class LossScaler {
 public:
  double scale() const { return scale_; }
  void overflowed();
  void step_succeeded();
  // True if the scale was halved many times without success, so that the loss itself is probably not finite.
  bool scale_too_small() const { return scale_ < 1e-4; }
  void restore(double scale, std::int64_t good_steps) { scale_ = scale, good_steps_ = good_steps; }
  std::int64_t good_steps() const { return good_steps_; }

 private:
  double scale_ = 65536;
  std::int64_t good_steps_ = 0;
};

}  // namespace tutti::train
