// A rank's part of the training: its layers, replicas and optimizer, one step after the other, and tests between.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "train/data.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/parallel/mesh.h"
#include "train/parallel/pipeline.h"
#include "train/parallel/replicas.h"

namespace tutti::train {

// Of one step, the same on all ranks but for the seconds, which are this rank's.
struct StepReport {
  double loss = 0;  // mean over the batch
  std::int64_t samples = 0;
  double grad_norm = 0;  // where it was asked for: with clip, and in float16
  double scale = 1;      // of the loss, in float16
  bool skipped = false;  // in float16: a gradient had overflowed
  bool stop = false;     // some rank wants to
  double load_s = 0;
  double compute_s = 0;  // all that is neither load nor exposed
  double exposed_s = 0;  // waiting for other ranks
  double step_s = 0;
};

struct TestReport {
  double loss = 0;
  double accuracy = 0;  // samples (of gpt: bytes) whose likeliest class is right
};

// Wraps replicas: for tests that plant mistakes.
using WrapReplicas = std::function<std::unique_ptr<Replicas>(std::unique_ptr<Replicas>)>;

class Learner {
 public:
  // Collective over the mesh. `options` are complete; mesh and data outlive this.
  Learner(const TrainOptions& options, Mesh& mesh, const Data& data, const WrapReplicas& wrap = {});
  ~Learner();

  // Trains on these samples of the training set, the same on all ranks. `stop`: what this rank wants. Throws Failure:
  // a peer is lost, ranks disagree, the loss is not finite (names the ranks); the values are then as before the step.
  StepReport step(const std::vector<std::int64_t>& indices, double lr, bool stop);
  TestReport test();

  const Row& row() const { return row_; }
  std::vector<Shard>& shards() { return replicas_->shards(); }
  Replicas& replicas() { return *replicas_; }
  Optimizer& optimizer() { return *optimizer_; }
  LossScaler& scaler() { return scaler_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }  // done before
  std::int64_t samples() const { return data_.train.size(); }
  std::int64_t targets_each() const { return data_.train.targets.numel() / data_.train.size(); }  // of a sample
  std::size_t first_layer() const { return first_layer_; }
  // Values, gradients, buffers for them and the optimizer's state of this rank, by arithmetic.
  std::int64_t state_bytes() const;
  const std::vector<double>& weights() const { return weights_; }  // of the data-parallel ranks' shares

 private:
  struct Seen;
  std::vector<MicroBatch> micro_batches(const std::vector<std::int64_t>& indices);
  std::vector<Part> parts_of(std::int64_t batch) const;
  MicroBatch micro_batch(const std::vector<std::int64_t>& indices, Part part, double divisor);
  StepReport try_step(const std::vector<std::int64_t>& indices, double lr, bool stop);
  double squared_norm();
  void slow_down(double seconds) const;
  bool update(const Seen& seen, StepReport& report, double lr);
  void balance(const Seen& seen);
  Seen gather(double squared_norm, bool stop, double compute_s);
  void share_buffers();

  const TrainOptions options_;
  Mesh& mesh_;
  const Data& data_;
  torch::Device device_;
  std::size_t first_layer_ = 0;
  Row row_;
  std::unique_ptr<Replicas> replicas_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Spill> spill_;
  PassOptions pass_options_;
  LossScaler scaler_;
  double loss_sum_ = 0;  // of this rank's samples in this step
  std::vector<double> weights_;
  std::vector<double> took_s_;  // balance: by data-parallel rank, since the last time
  std::vector<double> samples_;
  std::int64_t steps_ = 0;
};

}  // namespace tutti::train
