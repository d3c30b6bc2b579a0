#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "train/memory.h"

namespace tutti::train {
namespace {

std::int64_t parameters_of(const TrainOptions& options) {
  std::int64_t count = 0;
  for (const auto& layer : make_layers(options.model, 0, layers_of(options.model), nullptr)) {
    for (const Parameter& parameter : layer->parts()) count += parameter.tensor.numel();
  }
  return count;
}

// The greatest of the values of all ranks. Collective.
std::int64_t greatest_of_all(Comm& world, std::int64_t value) {
  Tensor all = torch::tensor({value}, torch::kInt64);
  world.all_reduce(all, ReduceOp::kMax);
  return all.item<std::int64_t>();
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, Data data, WrapReplicas wrap)
    : options_(options),
      data_(std::move(data)),
      wrap_(std::move(wrap)),
      sampler_(data_.train.size(), options.batch, options.seed) {
  steps_ = options.steps > 0
               ? options.steps
               : std::max<std::int64_t>(1, std::llround(options.epochs * static_cast<double>(sampler_.batches())));
}

Trainer::~Trainer() {
  learner_.reset();
  mesh_.reset();
}

// The learning rate of a step, counted from 0. It grows linearly during the warm-up. Then it falls linearly or as a
// cosine, so that it would be 0 in the step after the last one; with Decay::kNone it stays constant.
double Trainer::rate(std::int64_t step) const {
  if (step < options_.warmup) return options_.lr * static_cast<double>(step + 1) / static_cast<double>(options_.warmup);
  const double whole = static_cast<double>(std::max<std::int64_t>(1, steps_ - options_.warmup));
  const double passed = std::min(1.0, static_cast<double>(step - options_.warmup) / whole);
  switch (options_.decay) {
    case Decay::kLinear: return options_.lr * (1 - passed);
    case Decay::kCosine: return options_.lr * 0.5 * (1 + std::cos(std::numbers::pi * passed));
    case Decay::kNone: break;
  }
  return options_.lr;
}

void Trainer::create_learner(Communicator* job) {
  learner_.reset();
  mesh_ = std::make_unique<Mesh>(job, options_);
  learner_ = std::make_unique<Learner>(options_, *mesh_, data_, wrap_);
}

void Trainer::open_log(bool append) {
  if (!writes_log() || log_ != nullptr) return;
  log_ = std::make_unique<Log>(options_, append);
  log_->run({.parameters = parameters_of(options_), .data_ranks = data_ranks(options_), .time = utc_time()});
}

void Trainer::do_step() {
  const std::int64_t step = progress_.step;
  const bool late =
      options_.minutes > 0 &&
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count() > 60 * options_.minutes;
  const double lr = rate(step);
  const StepReport report = learner_->step(sampler_.batch(step), lr, late);
  ++progress_.step;
  last_loss_ = report.loss;
  seconds_ += report.step_s;
  samples_done_ += report.samples;
  if (report.stop && stop_at_ == 0) stop_at_ = progress_.step;
  if (on_step) on_step(progress_.step, report);
  if (log_ == nullptr) return;
  log_->step(progress_.step, epochs(progress_.step), lr, report);
  log_->progress(progress_.step, steps_, epochs(progress_.step), report);
}

// Runs a test. Its result is the same on all ranks. So all ranks throw if the loss is not finite.
void Trainer::test() {
  last_test_ = learner_->test();
  tested_at_ = progress_.step;
  if (log_ != nullptr) log_->test(progress_.step, epochs(progress_.step), last_test_);
  if (std::isfinite(last_test_.loss)) return;
  mesh_->world.fail_on_all_ranks(
      {ErrorCode::kInvalidArgument,
       fmt::format("the loss of the test after step {} is not finite: training has diverged. Lower --lr, give --warmup "
                   "or --clip, or go back to a checkpoint; these values are not saved",
                   progress_.step)});
}

// Called between steps. Runs a test if a multiple of test_every epochs has been reached, and stops the training after
// --patience consecutive tests without a better loss. finish() runs the test after the last step.
void Trainer::test_if_due() {
  if (options_.test_every <= 0 || progress_.step == 0 || tested_at_ == progress_.step) return;
  const auto every =
      std::max<std::int64_t>(1, std::llround(options_.test_every * static_cast<double>(sampler_.batches())));
  if (progress_.step % every != 0 || progress_.step >= steps_) return;
  test();
  const bool better = progress_.best_loss == 0 || last_test_.loss < progress_.best_loss;
  if (better) progress_.best_loss = last_test_.loss;
  progress_.tests_without_better = better ? 0 : progress_.tests_without_better + 1;
  if (options_.patience > 0 && progress_.tests_without_better >= options_.patience) {
    stop_at_ = progress_.step;
    if (log_ != nullptr) log_->note(fmt::format("{} tests without a better loss: all ranks stop", options_.patience));
  }
}

void Trainer::save_if_due() {
  const std::int64_t every = options_.checkpoint_every > 0 ? options_.checkpoint_every : sampler_.batches();
  if (progress_.step > 0 && progress_.step % every == 0) save();
}

void Trainer::save() {
  if (options_.checkpoint.empty() || saved_at_ == progress_.step) return;
  save_checkpoint(options_.checkpoint, options_, *mesh_, *learner_, progress_);
  saved_at_ = progress_.step;
}

RunResult Trainer::finish() {
  if (tested_at_ != progress_.step) test();
  save();
  Comm& world = mesh_->world;
  const RunResult result = {.steps = progress_.step,
                            .epochs = epochs(progress_.step),
                            .loss = last_loss_,
                            .test = last_test_,
                            .seconds = seconds_,
                            .samples_per_s = seconds_ > 0 ? static_cast<double>(samples_done_) / seconds_ : 0,
                            .peak_bytes = greatest_of_all(world, peak_bytes()),
                            .state_bytes = greatest_of_all(world, learner_->state_bytes()),
                            .sent_bytes = static_cast<std::int64_t>(mesh_->time.bytes)};
  if (log_ != nullptr) {
    log_->result(result);
    log_->finish();
  }
  return result;
}

void Trainer::resume() {
  progress_ = load_checkpoint(options_.checkpoint, options_, *mesh_, *learner_, notes_);
  learner_->set_steps(progress_.step);
  saved_at_ = progress_.step;
  notes_.push_back(fmt::format("going on at step {}", progress_.step));
  if (progress_.step >= steps_) notes_.push_back(fmt::format("nothing is left to do: {} steps were asked for", steps_));
}

void Trainer::print_notes() {
  for (const std::string& note : notes_) {
    if (log_ != nullptr) log_->note(note);
  }
  notes_.clear();
}

RunResult Trainer::run(Communicator* job) {
  create_learner(job);
  open_log(options_.resume);
  if (!options_.checkpoint.empty() && !options_.resume) refuse_checkpoints(options_.checkpoint, *mesh_);
  if (options_.resume) resume();
  print_notes();
  reset_peak();
  while (progress_.step < steps_ && stop_at_ == 0) {
    do_step();
    if (progress_.step >= steps_ || stop_at_ != 0) break;
    test_if_due();
    save_if_due();
  }
  return finish();
}

// Copies values, optimizer moments and buffers of the current learner to another one.
void Trainer::copy_state(Learner& to) {
  auto& shards = to.shards();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].values.copy_(learner_->shards()[i].values);
    for (std::size_t m = 0; m < to.optimizer().moments(); ++m) {
      to.optimizer().state()[i][m].copy_(learner_->optimizer().state()[i][m]);
    }
  }
  for (std::size_t layer = 0; layer < to.layers().size(); ++layer) {
    std::vector<Tensor> buffers = to.layers()[layer]->buffers();
    const std::vector<Tensor> from = learner_->layers()[layer]->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(from[i]);
  }
}

// Called when the ranks of an elastic job have a new communicator. Creates a learner for these ranks. Rank `source` has
// the current state and broadcasts it. If no rank has a state, the training starts from the checkpoint (--resume) or
// from its first step. If this function fails, the old learner has not changed. Errors that a peer may have caused
// are returned, so that the job can try again with other ranks; other errors are thrown.
Status Trainer::restore(Communicator& communicator, std::int32_t source, std::int64_t step) {
  try {
    TrainOptions options = options_;
    options.ranks = communicator.size();
    auto mesh = std::make_unique<Mesh>(&communicator, options);
    auto learner = std::make_unique<Learner>(options, *mesh, data_, wrap_);
    Tensor numbers = torch::zeros({11}, torch::kFloat64);
    auto& shards = learner->shards();
    const torch::NoGradGuard no_grad;
    if (communicator.rank() == source && learner_ != nullptr) {
      numbers = torch::tensor(
          {1.0, double(base_), progress_.best_loss, double(progress_.tests_without_better),
           double(learner_->optimizer().steps()), double(stop_at_), learner_->scaler().scale(),
           double(learner_->scaler().good_steps()), double(tested_at_), last_test_.loss, last_test_.accuracy},
          torch::kFloat64);
      copy_state(*learner);
    }
    mesh->world.broadcast(numbers, source);
    const auto number = [&](int i) { return static_cast<std::int64_t>(numbers[i].item<double>()); };
    const bool begun = number(0) != 0;
    for (std::size_t i = 0; i < shards.size() && begun; ++i) {
      mesh->world.broadcast(shards[i].values, source);
      for (Tensor& moment : learner->optimizer().state()[i]) mesh->world.broadcast(moment, source);
    }
    Progress progress = {
        .step = number(1) + step, .best_loss = numbers[2].item<double>(), .tests_without_better = number(3)};
    learner->optimizer().set_steps(number(4));
    if (begun) {
      learner->scaler().restore(numbers[6].item<double>(), number(7));
      for (const auto& layer : learner->layers()) {
        for (Tensor& buffer : layer->buffers()) mesh->world.broadcast(buffer, source);
      }
    }
    if (!begun && !options.resume && !options.checkpoint.empty()) refuse_checkpoints(options.checkpoint, *mesh);
    if (!begun && options.resume) {
      progress = load_checkpoint(options.checkpoint, options, *mesh, *learner, notes_);
      notes_.push_back(fmt::format("going on at step {}", progress.step));
    }
    learner->set_steps(progress.step);
    learner_ = std::move(learner);
    mesh_ = std::move(mesh);
    options_.ranks = options.ranks;
    base_ = progress.step - step;
    progress_ = progress;
    stop_at_ = number(5);
    // number(8) is tested_at_ of the source. So it is the same on all ranks, including new ranks, and all ranks test at
    // the same steps.
    tested_at_ = begun ? number(8) : -1;
    last_test_ = {numbers[9].item<double>(), numbers[10].item<double>()};
    saved_at_ = -1;
  } catch (const Failure& failure) {
    if (!may_be_peer_failure(failure.error().code)) throw;
    return failure.error();
  }
  return {};
}

bool Trainer::may_be_peer_failure(ErrorCode code) {
  return code == ErrorCode::kPeerLost || code == ErrorCode::kTimeout || code == ErrorCode::kAborted ||
         code == ErrorCode::kRefused;
}

void Trainer::abort() {
  if (mesh_ != nullptr) mesh_->abort();
}

RunResult Trainer::run_elastic(Elastic& job) {
  const auto give = [&](Communicator& communicator, std::int32_t source) {
    return restore(communicator, source, static_cast<std::int64_t>(job.step()));
  };
  // When next() returns true for the first time, it has called `give`, which creates this rank's learner. Until then
  // the number of steps that is passed to next() is an upper bound, because base_, the step of the checkpoint, is not
  // known yet.
  while (job.next(static_cast<std::uint64_t>(std::max<std::int64_t>(0, last_step() - base_)), give)) {
    if (progress_.step >= last_step()) continue;
    open_log(job.meeting() > 1 || options_.resume);
    if (!writes_log()) log_.reset();
    print_notes();
    Status status;
    try {
      test_if_due();
      save_if_due();
      if (stop_at_ > 0) stop_at_ = progress_.step + 1;
      do_step();
    } catch (const Failure& failure) {
      if (!may_be_peer_failure(failure.error().code)) throw;
      status = failure.error();
    }
    job.done(status);
    if (status.ok()) continue;
    mesh_->abort();
    learner_->replicas().abandon();
  }
  if (!job.status().ok()) throw Failure(job.status().error());
  open_log(true);
  return finish();
}

}  // namespace tutti::train
