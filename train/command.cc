#include "train/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <map>

#include "tools/common/validators.h"

namespace tutti::train {
namespace {

constexpr int kUsage = 2;

template <class Value>
using NamedValues = std::map<std::string, Value>;

const NamedValues<Strategy> kStrategies = {
    {"ddp", Strategy::kDdp},    {"zero1", Strategy::kZero1}, {"zero2", Strategy::kZero2},  {"zero3", Strategy::kZero3},
    {"fsdp", Strategy::kZero3}, {"mics", Strategy::kMics},   {"server", Strategy::kServer}};
const NamedValues<Schedule> kSchedules = {{"gpipe", Schedule::kGpipe}, {"1f1b", Schedule::kOneForwardOneBackward}};
const NamedValues<OptimizerType> kOptimizers = {{"sgd", OptimizerType::kSgd}, {"adamw", OptimizerType::kAdamW}};
const NamedValues<Decay> kDecays = {{"none", Decay::kNone}, {"linear", Decay::kLinear}, {"cosine", Decay::kCosine}};
const NamedValues<Precision> kPrecisions = {
    {"fp32", Precision::kFloat32}, {"bf16", Precision::kBfloat16}, {"fp16", Precision::kFloat16}};

// Adds an option that takes one of the names in `words`. The option sets `value` to the value of that name.
template <class Value>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Value& value, const NamedValues<Value>& words,
                        const std::string& what) {
  std::vector<std::string> known;
  for (const auto& [word, of] : words) known.push_back(word);
  return app
      .add_option_function<std::string>(
          name, [&value, &words](const std::string& word) { value = words.at(word); },
          fmt::format("{}: {}", what, fmt::join(known, ", ")))
      ->check(tool::name_in(known).description(""))
      ->type_name("WORD");
}

void add_slow(CLI::App& app, TrainOptions& options) {
  app.add_option_function<std::string>(
         "--slow",
         [&options](const std::string& text) {
           const char* const end = text.data() + text.size();
           const auto [colon, wrong] = std::from_chars(text.data(), end, options.slow_rank);
           const bool good = wrong == std::errc() && colon != end && *colon == ':' &&
                             std::from_chars(colon + 1, end, options.slow_factor).ptr == end &&
                             options.slow_factor >= 1;
           if (!good) throw CLI::ValidationError("--slow", "'" + text + "': write RANK:FACTOR, for example 1:2.5");
         },
         "RANK:FACTOR: slow down the computation of that rank by a factor, to try --balance")
      ->type_name("RANK:FACTOR");
}

void add_ranks(CLI::App& app, TrainOptions& options) {
  app.add_option("-n,--ranks", options.ranks, "Ranks (default 2; with --elastic its MAX)")
      ->check(tool::number_in(1, 4096));
  add_choice(app, "--strategy", options.strategy, kStrategies, "How data-parallel ranks share state")
      ->default_str("ddp");
  app.add_option("--group", options.group, "mics: number of ranks that share one set of shards");
  app.add_option("--servers", options.servers, "server: number of parameter servers; they are the first ranks")
      ->capture_default_str();
  app.add_option("--tensor", options.tensor, "Ranks that share each layer")->capture_default_str();
  app.add_option("--pipeline", options.pipeline, "Pipeline stages")->capture_default_str();
  add_choice(app, "--schedule", options.schedule, kSchedules, "Pipeline schedule")->default_str("1f1b");
  app.add_option("--micro-batches", options.micro_batches,
                 "Micro-batches per step of a pipeline (default: twice the stages)")
      ->check(tool::number_from(1));
  app.add_option("--accumulate", options.accumulate,
                 "Passes per step; ddp, zero1 and server communicate only in or after the last")
      ->capture_default_str();
  app.add_option("--as-ranks", options.as_ranks,
                 "Compute the shares of so many ranks in one process, and add up their gradients in rank order");
  app.add_option("--bucket-kb", options.bucket_kb, "KiB of gradients in one call")
      ->check(tool::number_in(1, 1 << 21))
      ->capture_default_str();
  app.add_flag("!--no-overlap", options.overlap, "Communicate after the backward pass, not during it");
  app.add_option("--algorithm", options.algorithm, "Algorithm of the gradients' all-reduce: auto, ring, two_shot, ...")
      ->capture_default_str();
  app.add_flag("--balance", options.balance, "Divide the batch by the measured speed of the ranks");
  add_slow(app, options);
  app.add_option("--threads", options.threads, "libtorch threads per rank (default: cores / ranks)");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N")->capture_default_str();
}

void add_training(CLI::App& app, TrainOptions& options) {
  app.add_option("--batch", options.batch, "Samples per step, of all ranks together");
  app.add_option("--epochs", options.epochs, "Passes over the training data; 0.5 is half of the data")
      ->check(tool::number_in(0.0, 1e6));
  app.add_option("--steps", options.steps, "Steps, in place of --epochs")->check(tool::number_from(0));
  app.add_option("--seed", options.seed, "Seed of the parameters and of the order of samples")->capture_default_str();
  add_choice(app, "--optimizer", options.optimizer, kOptimizers, "Default: the model's");
  app.add_option("--lr", options.lr, "Learning rate")->check(tool::number_from(0));
  app.add_flag("--scale-lr", options.scale_lr, "Multiply the rate by batch / the model's default batch");
  app.add_option("--momentum", options.momentum, "Momentum of sgd")->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay, "Weight decay")->capture_default_str();
  app.add_option("--warmup", options.warmup, "Steps over which the rate grows from 0")->check(tool::number_from(0));
  add_choice(app, "--decay", options.decay, kDecays, "How the learning rate falls until the end")
      ->default_str("linear");
  app.add_option("--clip", options.clip, "Largest norm of the whole gradient; 0: unlimited")
      ->check(tool::number_from(0));
  add_choice(app, "--precision", options.precision, kPrecisions, "Number format of the computation")
      ->default_str("fp32");
  app.add_flag("--recompute", options.recompute,
               "Save only the inputs of layers, and compute the layers again in the backward pass");
  app.add_option("--offload", options.offload, "With --recompute: folder of a temporary file for the saved inputs");
  app.add_option("--width", options.model.width, "Width of vit and gpt (default: the model's)")
      ->check(tool::number_in(0, 1 << 16));
  app.add_option("--blocks", options.model.blocks, "Blocks of vit and gpt (default: the model's)")
      ->check(tool::number_in(0, 4096));
}

void add_files(CLI::App& app, TrainOptions& options) {
  app.add_option("--data", options.data, "fashion-mnist, text or generated (default: by model)");
  app.add_option("--data-dir", options.data_folder, "Folder of the data files (default: that of Debian's package)");
  app.add_option("--samples", options.samples, "Use only the first so many training samples")
      ->check(tool::number_from(0));
  app.add_option("--checkpoint", options.checkpoint, "Folder for checkpoints; the last two are kept");
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "Steps between checkpoints (default: each epoch; always at the end)")
      ->check(tool::number_from(0));
  app.add_flag("--resume", options.resume, "Resume from the newest complete checkpoint; ranks and strategy may differ");
  app.add_option("--test-every", options.test_every, "Epochs between tests; 0: only at the end")->capture_default_str();
  app.add_option("--patience", options.patience, "Stop after so many tests in a row without a better loss; 0: never")
      ->check(tool::number_from(0));
  app.add_option("--minutes", options.minutes, "Stop and test after so many minutes; 0: never")
      ->check(tool::number_from(0));
  app.add_option("--json", options.json, "Write the run's records to this file (docs/training.md)");
  app.add_flag("--quiet", options.quiet, "Print no progress");
  app.add_flag("--elastic-rank", options.elastic, "")->group("");
  app.add_flag("--terminal", options.terminal, "")->group("");
  app.add_option("--memory-bytes", options.memory_bytes, "")->group("");
}

}  // namespace

Command parse_command(const std::vector<std::string>& arguments) {
  Command command;
  CLI::App app("Train a reference model on the ranks of a job, with a parallel strategy: docs/training.md.",
               "tutti train");
  std::vector<std::string> words(arguments.rbegin(), arguments.rend());  // reversed for CLI11
  app.add_option("model", command.options.model.name, fmt::format("{}", fmt::join(model_names(), ", ")))
      ->required()
      ->check(tool::name_in(model_names()).description(""));
  add_ranks(app, command.options);
  add_training(app, command.options);
  add_files(app, command.options);
  app.add_flag("--check", command.check, "")->group("");
  app.footer(
      "Examples: tutti train cnn --ranks 2 --strategy ddp --json run.json\n"
      "          tutti train gpt --ranks 8 --strategy zero1 --tensor 2 --pipeline 2\n"
      "--elastic MIN:MAX, --max-restarts and --rejoin-s: as in `tutti run` (docs/elastic.md).");
  try {
    app.parse(std::move(words));
    command.options.ranks_given = app.count("--ranks") > 0;
    command.options.optimizer_given = app.count("--optimizer") > 0;
    command.options.model.seed = command.options.seed;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      command.exit_status = app.exit(error);
      return command;
    }
    fmt::print(stderr, "{}: {}\nSee {} --help.\n", app.get_name(), tool::describe_parse_error(error), app.get_name());
    command.exit_status = kUsage;
  }
  return command;
}

}  // namespace tutti::train
