#include "train/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "tools/common/messages.h"

namespace tutti::train {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Failure(ErrorCode::kInvalidArgument, message); }

struct Defaults {
  std::int64_t batch;
  double epochs;
  OptimizerType optimizer;
  double lr;
};

Defaults defaults_of(const std::string& model) {
  if (model == "gpt") return {32, 4, OptimizerType::kAdamW, 1e-3};
  if (model == "vit") return {64, 3, OptimizerType::kAdamW, 1e-3};
  return {64, 3, OptimizerType::kSgd, model == "cnn" ? 0.02 : 0.05};
}

constexpr std::int32_t kMostRanks = 65535;

void check_mesh(const TrainOptions& options) {
  const auto check = [](const char* name, std::int32_t ranks) {
    if (ranks < 1 || ranks > kMostRanks) refuse(fmt::format("{} {}: write 1 to {}", name, ranks, kMostRanks));
  };
  check("--ranks", options.ranks);
  check("--tensor", options.tensor);
  check("--pipeline", options.pipeline);
  if (std::int64_t{options.tensor} * options.pipeline > options.ranks) {
    refuse(
        fmt::format("{} tensor x {} pipeline are more than {} ranks", options.tensor, options.pipeline, options.ranks));
  }
  if (options.ranks % (options.tensor * options.pipeline) != 0) {
    refuse(fmt::format("{} ranks cannot be laid out as data x {} tensor x {} pipeline: give --ranks a multiple of {}",
                       options.ranks, options.tensor, options.pipeline, options.tensor * options.pipeline));
  }
  const auto layers = static_cast<std::int64_t>(layers_of(options.model));
  if (options.pipeline > layers) {
    refuse(fmt::format("--pipeline {}: {} has {} layers only", options.pipeline, options.model.name, layers));
  }
  if (const std::int64_t most = shared_by_most(options.model); most % options.tensor != 0) {
    refuse(fmt::format("--tensor {}: the layers of {} can be shared by {} ranks at most, and by divisors of that",
                       options.tensor, options.model.name, most));
  }
  const std::int32_t data = data_ranks(options);
  if (options.strategy == Strategy::kMics && (options.group < 1 || data % options.group != 0)) {
    refuse(fmt::format("--strategy mics: give --group a divisor of the {} data-parallel ranks", data));
  }
  if (options.strategy != Strategy::kServer) return;
  if (options.tensor * options.pipeline > 1) refuse("--strategy server cannot be combined with --tensor or --pipeline");
  if (options.servers < 1 || options.servers >= options.ranks) {
    refuse(fmt::format("--servers {}: {} ranks must include at least one server and one worker", options.servers,
                       options.ranks));
  }
}

void check_combinations(const TrainOptions& options) {
  const bool replicated = options.strategy == Strategy::kDdp;
  if (options.elastic && (!replicated || options.tensor * options.pipeline > 1)) {
    refuse(
        "--elastic needs ranks that each have the whole state: --strategy ddp without --tensor and --pipeline. For "
        "other configurations use --checkpoint, and restart with --resume");
  }
  if (options.as_ranks > 0 && (options.ranks != 1 || options.accumulate != 1)) {
    refuse("--as-ranks is for one process: give --ranks 1, and no --accumulate");
  }
  if (!options.offload.empty() && !options.recompute)
    refuse("--offload needs --recompute, which saves the inputs of layers");
  if (options.recompute && options.model.name == "resnet_bn") {
    refuse("--recompute would count each batch twice in the running statistics of resnet_bn; use resnet");
  }
  if (options.resume && options.checkpoint.empty()) refuse("--resume: give the folder with --checkpoint DIR");
  if (options.balance && options.strategy == Strategy::kServer)
    refuse("--balance cannot be combined with --strategy server");
  if (options.accumulate > 1 && options.pipeline > 1) {
    refuse("--accumulate cannot be combined with --pipeline; give --micro-batches instead");
  }
}

void check_numbers(const TrainOptions& options) {
  for (const double value : {options.lr, options.momentum, options.weight_decay, options.clip, options.epochs}) {
    if (!std::isfinite(value)) refuse("a number is not finite");
  }
  if (!std::isfinite(options.slow_factor)) refuse("--slow: the factor is not finite");
  if (options.epochs == 0 && options.steps == 0)
    refuse("--epochs 0: there is nothing to do; give a number greater than 0, or --steps");
  if (options.slow_rank >= options.ranks) {
    refuse(fmt::format("--slow: there is no rank {} among {}", options.slow_rank, options.ranks));
  }
}

}  // namespace

std::int32_t data_ranks(const TrainOptions& options) { return options.ranks / (options.tensor * options.pipeline); }

void complete(TrainOptions& options) {
  const Defaults defaults = defaults_of(options.model.name);
  check_mesh(options);
  check_combinations(options);
  check_numbers(options);
  complete(options.model);
  if (options.strategy != Strategy::kMics) options.group = 0;
  if (options.batch < 0) options.batch = defaults.batch;
  if (options.batch < 1) refuse("--batch: " + tool::not_a_number(std::to_string(options.batch), 1, std::nullopt));
  if (options.accumulate < 1) {
    refuse("--accumulate: " + tool::not_a_number(std::to_string(options.accumulate), 1, std::nullopt));
  }
  if (!options.optimizer_given) options.optimizer = defaults.optimizer;
  if (options.epochs < 0) options.epochs = defaults.epochs;
  if (options.lr < 0) {
    const bool usual = options.optimizer == defaults.optimizer;
    options.lr = usual ? defaults.lr : options.optimizer == OptimizerType::kSgd ? 0.05 : 1e-3;
  }
  if (options.scale_lr) options.lr *= static_cast<double>(options.batch) / static_cast<double>(defaults.batch);
  options.scale_lr = false;
  if (options.micro_batches < 1) options.micro_batches = options.pipeline > 1 ? 2 * options.pipeline : 1;
  if (!parse_algorithm(options.algorithm)) {
    std::vector<std::string_view> known;
    for (const Algorithm each : all_algorithms()) known.push_back(to_string(each));
    refuse("--algorithm: " + tool::not_one_of(options.algorithm, known));
  }
  if (options.device != "cpu" && !options.device.starts_with("cuda")) refuse("--device is cpu, cuda or cuda:N");
  if (options.device != "cpu" && !torch::cuda::is_available()) {
    refuse("--device " + options.device +
           ": this libtorch was built without CUDA, or there is no GPU; use --device cpu");
  }
  if (options.threads < 1) {
    const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
    options.threads = std::max(1, cores / options.ranks);
  }
}

const char* name_of(Strategy strategy) {
  constexpr const char* kNames[] = {"ddp", "zero1", "zero2", "zero3", "mics", "server"};
  return kNames[static_cast<std::size_t>(strategy)];
}
const char* name_of(OptimizerType kind) { return kind == OptimizerType::kSgd ? "sgd" : "adamw"; }
const char* name_of(Precision precision) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp16"};
  return kNames[static_cast<std::size_t>(precision)];
}

}  // namespace tutti::train
