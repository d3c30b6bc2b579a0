// For tests of training: runs a training on ranks that are threads of the test.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/trainer.h"

namespace tutti::train {

// Options for a small GPT (width 16, 2 blocks) on generated text: 200 steps of 12 samples, without output.
TrainOptions small_gpt();

struct Training {
  std::vector<double> losses;              // of rank 0, indexed by step
  std::vector<StepReport> reports;         // of rank 0, indexed by step
  RunResult result;                        // of rank 0
  std::vector<std::vector<float>> values;  // indexed by rank: the concatenated values of its shards
  std::string error;                       // of the first rank that failed, or empty
  std::vector<std::string> errors;         // indexed by rank
};

struct TrainingHooks {
  std::function<void(std::int32_t rank, TrainOptions& options)> begin = {};  // may change the options of one rank
  WrapReplicas wrap = {};                                                    // called by every rank
  // Called by every rank at the end, while the other ranks still exist.
  std::function<void(std::int32_t rank, Trainer& trainer)> end = {};
};

// Trains on options.ranks threads. `options` may be incomplete. A failed training does not fail the test by itself:
// check `error`.
Training train_here(TrainOptions options, const TrainingHooks& hooks = {});

// Replicas that forward every call. A test of a mistake overrides some functions.
class Wrapped : public Replicas {
 public:
  explicit Wrapped(std::unique_ptr<Replicas> inner) : inner_(std::move(inner)) {}
  void begin_step() override { inner_->begin_step(); }
  void need(std::size_t layer, std::int64_t next) override { inner_->need(layer, next); }
  void begin_backward(std::size_t layer) override { inner_->begin_backward(layer); }
  void end_backward(std::size_t layer, bool last) override { inner_->end_backward(layer, last); }
  void finish() override { inner_->finish(); }
  std::vector<Shard>& shards() override { return inner_->shards(); }
  void publish() override { inner_->publish(); }
  void abandon() override { inner_->abandon(); }
  bool replicated() const override { return inner_->replicated(); }
  bool computes() const override { return inner_->computes(); }
  std::int64_t held_bytes() const override { return inner_->held_bytes(); }

 protected:
  std::unique_ptr<Replicas> inner_;
};

// The largest relative difference of two curves. Infinite if their lengths differ or a value is NaN.
double drift(const std::vector<double>& curve, const std::vector<double>& other);

}  // namespace tutti::train
