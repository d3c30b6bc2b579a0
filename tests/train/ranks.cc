// Implements ranks.h.
#include "ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

namespace tutti::train {
namespace {

std::vector<float> values_of(Learner& learner) {
  std::vector<float> all;
  for (const Shard& shard : learner.shards()) {
    for (const ParameterSlice& slice : shard.slices) {
      const float* const data = shard.values.data_ptr<float>() + slice.at;
      all.insert(all.end(), data, data + slice.length);
    }
  }
  return all;
}

}  // namespace

TrainOptions small_gpt() {
  TrainOptions options;
  options.model.name = "gpt";
  options.model.width = 16;
  options.model.blocks = 2;
  options.data = "generated";
  options.samples = 100;  // with batches of 12, the last batch of an epoch has 4 samples
  options.batch = 12;
  options.steps = 200;
  options.test_every = 0;
  options.quiet = true;
  return options;
}

Training train_here(TrainOptions options, const TrainingHooks& hooks) {
  at::set_num_threads(1);
  Training training;
  const auto ranks = static_cast<std::size_t>(options.ranks);
  training.errors.resize(ranks);
  training.values.resize(ranks);
  try {
    complete(options);
  } catch (const Failure& failure) {
    training.error = failure.error().message;
    return training;
  }
  options.model.seed = options.seed;
  auto job = Communicator::create_all(options.ranks);
  if (!job) {
    training.error = job.error().message;
    return training;
  }
  const Data data = load_data({.name = options.data,
                               .folder = options.data_folder,
                               .text = reads_text(options.model.name),
                               .samples = options.samples,
                               .seed = options.seed});
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        TrainOptions mine = options;
        if (hooks.begin) hooks.begin(static_cast<std::int32_t>(rank), mine);
        Trainer trainer(mine, data, hooks.wrap);
        trainer.on_step = [&, rank](std::int64_t, const StepReport& report) {
          if (rank == 0) training.losses.push_back(report.loss);
          if (rank == 0) training.reports.push_back(report);
        };
        const RunResult result = trainer.run((*job)[rank].get());
        if (rank == 0) training.result = result;
        training.values[rank] = values_of(trainer.learner());
        if (hooks.end) hooks.end(static_cast<std::int32_t>(rank), trainer);
      } catch (const std::exception& error) {
        training.errors[rank] = error.what();
        (*job)[rank]->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : training.errors) {
    if (training.error.empty()) training.error = error;
  }
  return training;
}

double drift(const std::vector<double>& curve, const std::vector<double>& other) {
  if (curve.size() != other.size() || curve.empty()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const double apart = std::abs(curve[i] - other[i]) / std::abs(other[i]);
    if (!(apart <= most)) most = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
  }
  return most;
}

}  // namespace tutti::train
