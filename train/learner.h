// Learner: one rank's part of a training. It owns the layers of this rank, the Replicas object that shares their values
// with other ranks, and the optimizer. It executes the steps and the tests. One thread uses it. step() and test() are
// collective over the mesh.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "train/data.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/parallel/mesh.h"
#include "train/parallel/pipeline.h"
#include "train/parallel/replicas.h"

namespace tutti::train {

// The result of one step. All members are the same on all ranks, except the times, which are those of this rank.
struct StepReport {
  double loss = 0;  // mean over the targets of the batch
  std::int64_t samples = 0;
  double grad_norm = 0;  // norm of the gradient of the whole batch, before clipping
  double scale = 1;      // loss scale of float16; 1 with other precisions
  bool skipped = false;  // only float16: the loss or the gradient was not finite, so the values did not change
  bool stop = false;     // some rank passed stop = true
  // Seconds until the first pass begins, mostly for selecting and copying the samples; 0 on a parameter server.
  double load_s = 0;
  double compute_s = 0;  // the rest of step_s: neither load_s nor exposed_s
  double exposed_s = 0;  // the part of step_s in which this rank waited for communication and did not compute
  double step_s = 0;
};

struct TestReport {
  double loss = 0;
  // The fraction of the targets (0..1) for which the class with the highest output is the correct one. An image has one
  // target, and a text has one for each byte.
  double accuracy = 0;
};

// A function that wraps the replicas of a learner in an object that forwards the calls to them. For tests, which insert
// errors in this way.
using WrapReplicas = std::function<std::unique_ptr<Replicas>(std::unique_ptr<Replicas>)>;

class Learner {
 public:
  // Creates the layers, replicas and optimizer of this rank. Collective over the mesh. complete(options) must have
  // been called; mesh and data must outlive this object.
  Learner(const TrainOptions& options, Mesh& mesh, const Data& data, const WrapReplicas& wrap = {});
  ~Learner();

  // Executes one step on these samples of the training set; `indices` must be the same on all ranks. With `stop` this
  // rank asks all ranks to stop; they see it in StepReport::stop. Throws Failure, for example if a peer is lost, if a
  // call times out, or if the loss or the gradient is not finite (the message names the lowest rank with such a loss;
  // with float16 the step is only skipped, unless the loss scale has become too small).
  // The parameters are then as before the step, unless the failure occurred in Replicas::publish(), which runs after
  // the update. With kDdp, publish() does nothing. The running statistics of batch norm are as before the step only in
  // an elastic job.
  StepReport step(const std::vector<std::int64_t>& indices, double lr, bool stop);
  // Computes the loss and accuracy of the test data with the current values.
  TestReport test();

  const Layers& layers() const { return layers_; }
  std::vector<Shard>& shards() { return replicas_->shards(); }
  Replicas& replicas() { return *replicas_; }
  Optimizer& optimizer() { return *optimizer_; }
  LossScaler& scaler() { return scaler_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }  // call it after a restore; `steps`: the steps done so far
  std::int64_t samples() const { return data_.train.size(); }
  // CRC-32 of all training samples. The first call computes it, which takes about 0.2 s for fashion-mnist.
  std::uint32_t samples_crc();
  // number of targets of one sample: 1 for an image, the context length for a text
  std::int64_t targets_each() const { return data_.train.targets.numel() / data_.train.size(); }
  // Index in the model of the first layer of this rank (its pipeline stage).
  std::size_t first_layer() const { return first_layer_; }
  // Bytes of the values, gradients, communication buffers and optimizer state of this rank, calculated from their
  // sizes.
  std::int64_t state_bytes() const;
  // The weights of the shares of a batch, indexed by data-parallel rank (see share_of()).
  const std::vector<double>& weights() const { return weights_; }

 private:
  struct StepTotals;
  std::vector<MicroBatch> micro_batches(const std::vector<std::int64_t>& indices);
  std::vector<IndexRange> micro_batch_ranges(std::int64_t batch) const;
  MicroBatch micro_batch(const std::vector<std::int64_t>& indices, IndexRange part, double divisor);
  StepReport try_step(const std::vector<std::int64_t>& indices, double lr, bool stop);
  double squared_norm();
  void slow_down(double seconds) const;
  bool update(const StepTotals& totals, StepReport& report, double lr);
  void balance(const StepTotals& totals);
  StepTotals gather(double squared_norm, bool stop, double compute_s);
  void share_buffers();

  const TrainOptions options_;
  Mesh& mesh_;
  const Data& data_;
  torch::Device device_;
  std::size_t first_layer_ = 0;
  Layers layers_;
  std::unique_ptr<Replicas> replicas_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<OffloadFile> offload_file_;
  PassOptions pass_options_;
  LossScaler scaler_;
  // Sum of the losses of this rank's samples in this step.
  double loss_sum_ = 0;
  std::vector<double> weights_;
  // For `balance`, indexed by data-parallel rank: the computing time since the weights were last changed, in seconds.
  std::vector<double> took_s_;
  // Like took_s_, but the samples of the rank, as the sum of its weights.
  std::vector<double> samples_;
  std::int64_t steps_ = 0;
  std::optional<std::uint32_t> samples_crc_;  // empty: not computed yet
};

}  // namespace tutti::train
