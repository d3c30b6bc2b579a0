// Trainings on ranks that are threads of the test.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/trainer.h"

namespace tutti::train {

// A small gpt (width 16, 2 blocks) on generated text, 200 steps of 12 samples, quiet.
TrainOptions small_gpt();

struct Training {
  std::vector<double> losses;              // by step, of rank 0
  std::vector<StepReport> reports;         // the same
  RunResult result;                        // of rank 0
  std::vector<std::vector<float>> values;  // by rank: the shards' values, one behind the other
  std::string error;                       // of the first rank that failed; empty: none
  std::vector<std::string> errors;         // by rank
};

struct TrainingHooks {
  std::function<void(std::int32_t rank, TrainOptions& options)> begin = {};  // what a rank alone is told
  WrapReplicas wrap = {};                                                    // of every rank
  // Of every rank, while the others are there.
  std::function<void(std::int32_t rank, Trainer& trainer)> end = {};
};

// On options.ranks threads; options need not be complete. Fails no test by itself: see error.
Training train_here(TrainOptions options, const TrainingHooks& hooks = {});

// Replicas that pass everything on: a mistake overrides what it changes.
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

// The greatest relative difference of two curves of equal length; infinite where there is a NaN or another length.
double drift(const std::vector<double>& curve, const std::vector<double>& other);

}  // namespace tutti::train
