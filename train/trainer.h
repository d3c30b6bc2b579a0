// A training from its first step to its result: which samples come when, the learning rate, tests, checkpoints, early
// ends that all ranks agree on, and the log. In an elastic job the same, over ranks that come and go.
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
  // `options` are complete.
  Trainer(const TrainOptions& options, Data data, WrapReplicas wrap = {});
  ~Trainer();

  // Over the ranks of `job`, or alone (null). Throws Failure.
  RunResult run(Communicator* job);
  RunResult run_elastic(Elastic& job);
  // Whether another try, with other ranks, may go well: what is wrong with the training itself would be wrong again.
  static bool may_be_a_peers(ErrorCode code);

  // Called after each step, with its number from 1 on.
  std::function<void(std::int64_t step, const StepReport& report)> on_step;
  Learner& learner() { return *learner_; }  // after run()

 private:
  void meet(Communicator* job);
  Status restore(Communicator& communicator, std::int32_t source, std::int64_t step);
  void copy_state(Learner& to);
  void resume();
  void tell_notes();
  void test();
  void do_step();
  void test_if_due();
  void save_if_due();
  void save();
  std::int64_t last_step() const { return stop_at_ > 0 ? stop_at_ : steps_; }
  RunResult finish();
  double rate(std::int64_t step) const;
  double epochs(std::int64_t step) const { return static_cast<double>(step) / static_cast<double>(sampler_.batches()); }
  bool tells() { return mesh_->world.rank() == 0; }
  void open_log(bool append);

  TrainOptions options_;
  const Data data_;
  const WrapReplicas wrap_;
  Sampler sampler_;
  std::int64_t steps_ = 0;  // to be done in all
  Progress progress_;
  std::int64_t stop_at_ = 0;     // agreed on by all; 0: not before the end
  std::int64_t tested_at_ = -1;  // step
  std::int64_t saved_at_ = -1;   // step
  std::int64_t base_ = 0;        // of an elastic job: the step at which it began, by a checkpoint
  TestReport last_test_;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();  // of the last step; none was done
  double seconds_ = 0;
  std::int64_t samples_done_ = 0;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::vector<std::string> notes_;  // for people, when there is a log
  std::unique_ptr<Log> log_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Learner> learner_;  // ends before the mesh
};

}  // namespace tutti::train
