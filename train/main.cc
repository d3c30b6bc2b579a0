// tutti-train: one rank of a training. `tutti train` starts it once for each rank; other launchers that Tutti supports
// can start it, too (docs/run.md). Exit statuses: 0 success; 1 failed; 2 the command line is wrong (1 if a rank finds
// this only when it completes the options); 3 (only in elastic jobs) failed in a way that would repeat on a replacement
// of this rank.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/common/messages.h"
#include "train/command.h"
#include "train/data.h"
#include "train/memory.h"
#include "train/needed_memory.h"
#include "train/trainer.h"

namespace tutti::train {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;
constexpr int kPermanentFailure = 3;  // `tutti train --elastic` does not replace a rank that exits with this status

// Prints an error in one write, so that the lines of several ranks do not mix. Returns `status`.
int failed(const std::string& what, int status) {
  const char* const rank = std::getenv("TUTTI_RANK");
  fmt::print(stderr, "{}",
             fmt::format("tutti train: {}{}\n", rank != nullptr ? fmt::format("rank {}: ", rank) : "", what));
  return status;
}

Data load(const TrainOptions& options) {
  return load_data({.name = options.data,
                    .folder = options.data_folder,
                    .text = reads_text(options.model.name),
                    .samples = options.samples,
                    .seed = options.seed});
}

// Tries an all-reduce with --algorithm. The ranks are threads of this process, at most 64 of them. If there are more
// ranks, the algorithm is tried with 64. Throws Failure with the library's error message if the communicators cannot be
// created or the all-reduce fails.
void try_algorithm(const TrainOptions& options) {
  constexpr std::int32_t kMostThreads = 64;
  auto ranks = Communicator::create_all(std::min(options.ranks, kMostThreads));
  if (!ranks) throw Failure(ranks.error());
  std::vector<Status> ended(ranks->size());
  std::vector<std::jthread> threads;  // if one cannot be started, the others end after the timeout of the all-reduce
  for (std::size_t rank = 0; rank < ranks->size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> values(1024, 1.0F);
      ended[rank] = (*ranks)[rank]->all_reduce(values.data(), values.data(), values.size(), DataType::kFloat32,
                                               ReduceOp::kSum, {.algorithm = *parse_algorithm(options.algorithm)});
    });
  }
  for (std::jthread& thread : threads) thread.join();
  for (const Status& status : ended) {
    if (status.ok()) continue;
    throw Failure(ErrorCode::kInvalidArgument, "--algorithm " + options.algorithm + ": " + status.error().message);
  }
}

// Checks the options once, before the ranks are started, so that an error is reported once and not by every rank.
int check(TrainOptions options) {
  complete(options);
  check_memory(options);
  load(options);
  const Log log(options, true);
  if (!options.checkpoint.empty()) check_folder(options.checkpoint);
  if (!options.offload.empty()) const OffloadFile offload_file(options.offload);
  if (options.algorithm != "auto") try_algorithm(options);
  return 0;
}

int train(TrainOptions options) {
  options.elastic = options.elastic || std::getenv("TUTTI_ELASTIC_FD") != nullptr;
  if (options.elastic) {
    auto job = Elastic::join();
    if (!job) return failed(to_string(job.error()), kFailure);
    complete(options);
    at::set_num_threads(options.threads);
    Trainer trainer(options, load(options));
    try {
      trainer.run_elastic(*job);
    } catch (const Failure& failure) {
      return failed(failure.error().message,
                    Trainer::may_be_peer_failure(failure.error().code) ? kFailure : kPermanentFailure);
    }
    return 0;
  }
  auto communicator = Communicator::create();
  if (!communicator) return failed(to_string(communicator.error()), kFailure);
  if (options.ranks_given && options.ranks != (*communicator)->size()) {
    return failed(fmt::format("--ranks {}, but the job has {}", options.ranks, (*communicator)->size()), kUsage);
  }
  options.ranks = (*communicator)->size();
  complete(options);
  at::set_num_threads(options.threads);
  // Destroyed after the abort below, because its destructor waits for calls in progress.
  std::optional<Trainer> trainer;
  try {
    trainer.emplace(options, load(options));
    trainer->run(communicator->get());
  } catch (...) {
    // The abort makes the other ranks fail soon. Otherwise they could wait for this rank until their timeout. The
    // trainer's own communicators, for example of a tensor-parallel group, are aborted as well.
    if (trainer) trainer->abort();
    (*communicator)->abort();
    throw;
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const Command command = parse_command(arguments);
  if (command.exit_status >= 0) return command.exit_status;
  try {
    count_allocations();
    return command.check ? check(command.options) : train(command.options);
  } catch (const Failure& failure) {
    const bool usage = command.check && failure.error().code == ErrorCode::kInvalidArgument;
    return usage ? tool::report_usage("train", failure.error().message) : failed(failure.error().message, kFailure);
  } catch (const std::exception& error) {
    return failed(error.what(), kFailure);
  }
}

}  // namespace
}  // namespace tutti::train

int main(int argc, char** argv) { return tutti::train::run(std::vector<std::string>(argv + 1, argv + argc)); }
