// Trainer: a training from its first step to its result. It selects the samples and the learning rate of each step,
// and handles tests, checkpoints, the log, and early stops that all ranks agree on. It also runs elastic jobs, in
// which ranks can leave and join during the training. One thread uses a Trainer.
#pragma once

#include <functional>
#include <limits>
#include <memory>

#include "train/checkpoint.h"
#include "train/data.h"
#include "train/learner.h"
#include "train/log.h"

namespace tutti::train {

class Trainer {
 public:
  // complete(options) must have been called. `wrap` is for tests, see WrapReplicas.
  Trainer(const TrainOptions& options, Data data, WrapReplicas wrap = {});
  ~Trainer();

  // Trains on the ranks of `job`, or on this rank alone if it is null. Throws Failure.
  RunResult run(Communicator* job);
  // Trains on the changing ranks of an elastic job. Throws Failure.
  RunResult run_elastic(Elastic& job);
  // Aborts all communicators of the training. Has no effect before run() or run_elastic() has made them.
  void abort();
  // Whether an error may have been caused by a peer, so that another attempt with other ranks can succeed. Other
  // errors, for example a loss that is not finite, are expected to occur again.
  static bool may_be_peer_failure(ErrorCode code);

  // Called after each step; `step` is its number, starting at 1.
  std::function<void(std::int64_t step, const StepReport& report)> on_step;
  // Call it only in on_step(), or after run() or run_elastic() has returned: before that, there may be no learner yet.
  Learner& learner() { return *learner_; }

 private:
  void create_learner(Communicator* job);
  Status restore(Communicator& communicator, std::int32_t source, std::int64_t step);
  void copy_state(Learner& to);
  void resume();
  void print_notes();
  void test();
  void do_step();
  void test_if_due();
  void save_if_due();
  void save();
  std::int64_t last_step() const { return stop_at_ > 0 ? stop_at_ : steps_; }
  RunResult finish();
  double rate(std::int64_t step) const;
  double epochs(std::int64_t step) const { return static_cast<double>(step) / static_cast<double>(sampler_.batches()); }
  bool writes_log() { return mesh_->world.rank() == 0; }
  void open_log(bool append);

  TrainOptions options_;
  const Data data_;
  const WrapReplicas wrap_;
  Sampler sampler_;
  std::int64_t steps_ = 0;  // total number of steps of the training
  Progress progress_;
  std::int64_t stop_at_ = 0;     // the step at which all ranks stop early; 0: none
  std::int64_t tested_at_ = -1;  // number of completed steps at the last test; -1: no test yet
  std::int64_t saved_at_ = -1;   // number of completed steps at the last checkpoint; -1: none, or none since restore()
  // In an elastic job: the step at which the job started, which is that of the checkpoint it resumed from, or 0. The
  // steps of Elastic are counted from there.
  std::int64_t base_ = 0;
  TestReport last_test_;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();  // NaN before the first step
  double seconds_ = 0;
  std::int64_t samples_done_ = 0;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::vector<std::string> notes_;  // messages to print as soon as there is a log
  std::unique_ptr<Log> log_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Learner> learner_;  // destroyed before the mesh, which it uses
};

}  // namespace tutti::train
