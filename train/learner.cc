#include "train/learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "train/checkpoint_file.h"

namespace tutti::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBalanceEvery = 10;  // --balance: steps between changes of the ranks' shares of a batch
// Maximum number of samples in one forward pass of a test.
constexpr std::int64_t kTestBatch = 250;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The loss, summed over all targets. For a text each byte is a target.
Tensor summed_loss(const Tensor& output, const Tensor& targets) {
  return torch::nn::functional::cross_entropy(output.reshape({-1, output.size(-1)}), targets.reshape({-1}),
                                              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

std::unique_ptr<Replicas> make_replicas(const TrainOptions& options, const Layers& layers, Mesh& mesh,
                                        std::size_t first_layer, torch::Device device) {
  const ReplicaOptions how = {.bucket_bytes = options.bucket_kb * 1024,
                              .overlap = options.overlap,
                              .keep_in_place = !options.elastic,
                              .first_layer = first_layer,
                              .device = device};
  switch (options.strategy) {
    case Strategy::kZero1: return make_sharded_optimizer(layers, mesh.data, how);
    case Strategy::kZero2: return make_sharded_gradients(layers, mesh.data, how);
    case Strategy::kZero3: return make_fully_sharded(layers, mesh.data, mesh.across, how);
    case Strategy::kMics: return make_fully_sharded(layers, mesh.group, mesh.across, how);
    case Strategy::kServer: return make_parameter_server(layers, mesh.data, options.servers, how);
    case Strategy::kDdp: break;
  }
  return make_data_parallel(layers, mesh.data, how);
}

}  // namespace

// The values of a step, gathered from all ranks. They are the same on all ranks, so that all ranks make the same
// decisions.
struct Learner::StepTotals {
  double loss_sum = 0;
  double squared_norm = 0;
  bool stop = false;
  std::vector<std::int32_t> not_finite;  // ranks with a loss that is not finite
  // Indexed by data-parallel rank: the computing time, in seconds, of the slowest of its pipeline and tensor ranks.
  std::vector<double> compute_s;
};

Learner::Learner(const TrainOptions& options, Mesh& mesh, const Data& data, const WrapReplicas& wrap)
    : options_(options), mesh_(mesh), data_(data), device_(options.device) {
  const IndexRange stage =
      range_of_part(static_cast<std::int64_t>(layers_of(options.model)), mesh.pipe.rank(), mesh.pipe.size());
  first_layer_ = static_cast<std::size_t>(stage.begin);
  layers_ =
      make_layers(options.model, first_layer_, first_layer_ + static_cast<std::size_t>(stage.length), &mesh.tensor);
  for (const auto& layer : layers_) layer->to(device_);
  replicas_ = make_replicas(options, layers_, mesh, first_layer_, device_);
  if (wrap) replicas_ = wrap(std::move(replicas_));
  optimizer_ =
      std::make_unique<Optimizer>(options.optimizer, options.momentum, options.weight_decay, replicas_->shards());
  if (!options.offload.empty()) offload_file_ = std::make_unique<OffloadFile>(options.offload);
  pass_options_ = {.precision = options.precision,
                   .recompute = options.recompute,
                   .offload_file = offload_file_.get(),
                   .to_host = options.recompute && !device_.is_cpu()};
  weights_.assign(static_cast<std::size_t>(mesh.data.size()), 1.0);
  if (options.strategy == Strategy::kServer) std::fill_n(weights_.begin(), options.servers, 0.0);
  took_s_.assign(weights_.size(), 0);
  samples_.assign(weights_.size(), 0);
}

Learner::~Learner() = default;

// The parts of a batch for which this rank executes passes, one after the other. All ranks that train execute the same
// number of passes, because some strategies communicate in every pass.
std::vector<IndexRange> Learner::micro_batch_ranges(std::int64_t batch) const {
  if (options_.as_ranks > 0) {
    std::vector<IndexRange> parts;
    const std::vector<double> equal(static_cast<std::size_t>(options_.as_ranks), 1.0);
    for (std::int32_t rank = 0; rank < options_.as_ranks; ++rank) parts.push_back(share_of(batch, equal, rank));
    return parts;
  }
  const IndexRange share = share_of(batch, weights_, mesh_.data.rank());
  std::int64_t longest = 1;  // length of the longest share of any rank, but at least 1
  for (std::int32_t rank = 0; rank < mesh_.data.size(); ++rank) {
    longest = std::max(longest, share_of(batch, weights_, rank).length);
  }
  const std::int64_t passes = std::min(longest, std::max(options_.accumulate, options_.micro_batches));
  std::vector<IndexRange> parts;
  for (std::int64_t i = 0; i < passes; ++i) {
    const IndexRange part = range_of_part(share.length, i, passes);
    parts.push_back({share.begin + part.begin, part.length});
  }
  return parts;
}

// For an empty part the pass uses one sample with a weight of zero, so that ranks without samples take part in every
// collective. `divisor`: the number of targets of the whole batch, so that the gradients of all passes and ranks add
// up to the gradient of the mean loss.
MicroBatch Learner::micro_batch(const std::vector<std::int64_t>& indices, IndexRange part, double divisor) {
  const bool empty = part.length == 0;
  const Samples samples = pick(data_.train, indices, empty ? IndexRange{0, 1} : part, device_);
  const auto backward_of_loss = [this, samples, empty, divisor](const Tensor& output) {
    const Tensor sum = summed_loss(output, samples.targets);
    if (!empty) loss_sum_ += sum.item<double>();
    const double scale = options_.precision == Precision::kFloat16 ? scaler_.scale() : 1;
    (sum * (empty ? 0.0 : scale / divisor)).backward();
  };
  return {samples.inputs, backward_of_loss};
}

std::vector<MicroBatch> Learner::micro_batches(const std::vector<std::int64_t>& indices) {
  const auto samples = static_cast<std::int64_t>(indices.size());
  const auto divisor = static_cast<double>(samples * targets_each());
  std::vector<MicroBatch> batches;
  for (const IndexRange part : micro_batch_ranges(samples)) batches.push_back(micro_batch(indices, part, divisor));
  return batches;
}

// The squared norm of this rank's contribution to the gradient. If several ranks hold the same gradients, only one of
// them counts them, so that the sum over all ranks is correct.
double Learner::squared_norm() {
  if (replicas_->replicated() && mesh_.data.rank() != 0) return 0;
  if (options_.strategy == Strategy::kMics && mesh_.across.rank() != 0) return 0;
  double sum = 0;
  for (const Shard& shard : replicas_->shards()) {
    for (const ParameterSlice& slice : shard.slices) {
      if (slice.split_dim < 0 && mesh_.tensor.rank() != 0) continue;
      const double norm = shard.gradients.narrow(0, slice.at, slice.length).norm().item<double>();
      sum += norm * norm;
    }
  }
  return sum;
}

// Exchanges the values of this step among all ranks after the backward pass. Each rank adds them up in rank order, so
// that all ranks get the same bits.
Learner::StepTotals Learner::gather(double squared_norm, bool stop, double compute_s) {
  constexpr std::int64_t kValues = 4;
  const bool reports_loss = mesh_.is_last_stage() && mesh_.tensor.rank() == 0;
  const Tensor mine =
      torch::tensor({reports_loss ? loss_sum_ : 0.0, squared_norm, stop ? 1.0 : 0.0, compute_s}, torch::kFloat64);
  Tensor all = torch::empty({mesh_.world.size() * kValues}, torch::kFloat64);
  mesh_.world.all_gather(mine, all);
  const double* const values = all.data_ptr<double>();
  StepTotals totals;
  totals.compute_s.assign(weights_.size(), 0);
  const std::int32_t ranks_each = options_.tensor * options_.pipeline;
  for (std::int32_t rank = 0; rank < mesh_.world.size(); ++rank) {
    const double* const of_rank = values + rank * kValues;
    if (!std::isfinite(of_rank[0])) totals.not_finite.push_back(rank);
    totals.loss_sum += of_rank[0];
    totals.squared_norm += of_rank[1];
    totals.stop = totals.stop || of_rank[2] != 0;
    double& slowest = totals.compute_s[static_cast<std::size_t>(rank / ranks_each)];
    slowest = std::max(slowest, of_rank[3]);
  }
  return totals;
}

// Clips the gradients and applies the optimizer. If the loss or the gradient is not finite, it does neither and throws
// Failure. There is one exception: with float16, as long as the loss scale is not too small, it skips the step and
// returns false, on all ranks.
bool Learner::update(const StepTotals& totals, StepReport& report, double lr) {
  const bool scaled = options_.precision == Precision::kFloat16;
  const bool finite = std::isfinite(totals.squared_norm) && totals.not_finite.empty();
  const double scale = scaled ? scaler_.scale() : 1;
  report.scale = scale;
  report.grad_norm = std::sqrt(totals.squared_norm) / scale;
  if (scaled && !finite) {
    scaler_.overflowed();
    if (!scaler_.scale_too_small()) return false;
  }
  if (!finite) {
    const std::string who =
        totals.not_finite.empty() ? "its gradient" : fmt::format("rank {}", totals.not_finite.front());
    mesh_.world.fail_on_all_ranks(
        {ErrorCode::kInvalidArgument,
         fmt::format("the loss of step {} is not finite ({}): training has diverged. Lower --lr, give --warmup "
                     "or --clip, or go back to a checkpoint; this step has changed no parameters",
                     steps_ + 1, who)});
  }
  double factor = 1 / scale;
  if (options_.clip > 0 && report.grad_norm > options_.clip) factor *= options_.clip / report.grad_norm;
  if (factor != 1) {
    for (Shard& shard : replicas_->shards()) shard.gradients.mul_(factor);
  }
  optimizer_->step(replicas_->shards(), lr);
  if (scaled) scaler_.step_succeeded();
  return true;
}

std::uint32_t Learner::samples_crc() {
  if (!samples_crc_) {
    std::uint32_t crc = 0;
    for (const Tensor& tensor : {data_.train.inputs, data_.train.targets}) {
      const Tensor whole = tensor.contiguous();
      crc = crc_of({static_cast<const char*>(whole.data_ptr()), whole.nbytes()}, crc);
    }
    samples_crc_ = crc;
  }
  return *samples_crc_;
}

// Every kBalanceEvery steps, makes the weights of the shares proportional to the measured samples per second. No weight
// becomes less than a twentieth of the mean, so that each rank normally gets samples, with which its speed can be
// measured again.
void Learner::balance(const StepTotals& totals) {
  for (std::size_t rank = 0; rank < weights_.size(); ++rank) {
    took_s_[rank] += totals.compute_s[rank];
    samples_[rank] += weights_[rank];
  }
  if (steps_ % kBalanceEvery != 0) return;
  double total = 0;
  for (std::size_t rank = 0; rank < weights_.size(); ++rank) {
    weights_[rank] = samples_[rank] / std::max(took_s_[rank], 1e-9);
    total += weights_[rank];
  }
  const double equal = total / static_cast<double>(weights_.size());
  for (double& weight : weights_) weight = std::max(weight / equal, 0.05);
  std::fill(took_s_.begin(), took_s_.end(), 0);
  std::fill(samples_.begin(), samples_.end(), 0);
}

// Broadcasts the running statistics of batch norm from data-parallel rank 0, as PyTorch's DDP does, or from the first
// worker if there are parameter servers.
void Learner::share_buffers() {
  if (mesh_.data.size() == 1) return;
  const std::int32_t root = options_.strategy == Strategy::kServer ? options_.servers : 0;
  for (const auto& layer : layers_) {
    for (Tensor& buffer : layer->buffers()) {
      if (buffer.is_floating_point()) mesh_.data.broadcast(buffer, root);
    }
  }
}

// Sleeps if this is the rank of --slow, so that its passes take as long as if it were slower by the given factor.
// `seconds`: how long it has computed in the passes.
void Learner::slow_down(double seconds) const {
  if (mesh_.world.rank() != options_.slow_rank || options_.slow_factor <= 1) return;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds * (options_.slow_factor - 1)));
}

// In an elastic job a failed step is repeated. So in such a job the running statistics of batch norm are restored if
// the step fails, because its forward passes have already changed them.
StepReport Learner::step(const std::vector<std::int64_t>& indices, double lr, bool stop) {
  std::vector<std::pair<Tensor, Tensor>> kept;
  for (const auto& layer : layers_) {
    for (const Tensor& buffer : layer->buffers()) {
      if (options_.elastic) kept.emplace_back(buffer, buffer.clone());
    }
  }
  try {
    return try_step(indices, lr, stop);
  } catch (...) {
    for (auto& [buffer, before] : kept) buffer.copy_(before);
    throw;
  }
}

StepReport Learner::try_step(const std::vector<std::int64_t>& indices, double lr, bool stop) {
  const Clock::time_point start = Clock::now();
  const double exposed_before = mesh_.time.exposed_s;
  StepReport report;
  report.samples = static_cast<std::int64_t>(indices.size());
  loss_sum_ = 0;
  replicas_->begin_step();
  double passes_s = 0;
  if (replicas_->computes()) {
    const std::vector<MicroBatch> batches = micro_batches(indices);
    report.load_s = seconds_since(start);
    const double waited = mesh_.time.exposed_s;
    const Clock::time_point passes = Clock::now();
    run_pipeline(layers_, *replicas_, pass_options_, mesh_, options_.schedule, batches);
    slow_down(seconds_since(passes) - (mesh_.time.exposed_s - waited));
    passes_s = seconds_since(passes) - (mesh_.time.exposed_s - waited);
  }
  replicas_->finish();
  // share_buffers() and gather() can fail if a peer fails, so they run before the values change. With kDdp this step
  // does not communicate after the values have changed. So an elastic job, which always uses kDdp, can repeat a failed
  // step.
  share_buffers();
  const StepTotals totals = gather(squared_norm(), stop, passes_s);
  report.loss = totals.loss_sum / static_cast<double>(report.samples * targets_each());
  report.stop = totals.stop;
  report.skipped = !update(totals, report, lr);
  replicas_->publish();
  ++steps_;
  if (options_.balance) balance(totals);
  report.step_s = seconds_since(start);
  report.exposed_s = mesh_.time.exposed_s - exposed_before;
  report.compute_s = std::max(0.0, report.step_s - report.exposed_s - report.load_s);
  return report;
}

TestReport Learner::test() {
  for (const auto& layer : layers_) layer->eval();
  double sums[3] = {0, 0, 0};  // sum of the losses, number of correct targets, number of all targets
  // All ranks that train execute the same number of batches. After a rank has used up its share, it takes part with a
  // sample that is not counted.
  const IndexRange share = share_of(data_.test.size(), weights_, mesh_.data.rank());
  std::int64_t longest = 0;
  for (std::int32_t rank = 0; rank < mesh_.data.size(); ++rank) {
    longest = std::max(longest, share_of(data_.test.size(), weights_, rank).length);
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(data_.test.size()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  for (std::int64_t at = 0; at < longest && replicas_->computes(); at += kTestBatch) {
    const std::int64_t length = std::clamp<std::int64_t>(share.length - at, 0, kTestBatch);
    const Samples samples =
        pick(data_.test, all, length > 0 ? IndexRange{share.begin + at, length} : IndexRange{0, 1}, device_);
    const Tensor output = infer_pipeline(layers_, *replicas_, options_.precision, mesh_, samples.inputs);
    if (!output.defined() || length == 0 || mesh_.tensor.rank() != 0) continue;
    sums[0] += summed_loss(output, samples.targets).item<double>();
    sums[1] += output.argmax(-1).eq(samples.targets).sum().item<double>();
    sums[2] += static_cast<double>(samples.targets.numel());
  }
  for (const auto& layer : layers_) layer->train();
  const Tensor mine = torch::tensor({sums[0], sums[1], sums[2]}, torch::kFloat64);
  Tensor gathered = torch::empty({mesh_.world.size() * 3}, torch::kFloat64);
  mesh_.world.all_gather(mine, gathered);
  const Tensor total = gathered.view({-1, 3}).sum(0);
  const double count = std::max(1.0, total[2].item<double>());
  return {total[0].item<double>() / count, total[1].item<double>() / count};
}

std::int64_t Learner::state_bytes() const { return replicas_->held_bytes() + optimizer_->state_bytes(); }

}  // namespace tutti::train
