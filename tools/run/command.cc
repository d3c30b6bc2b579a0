#include "tools/run/command.h"

#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tools/common/exit_status.h"
#include "tools/common/messages.h"
#include "tools/common/validators.h"
#include "tools/run/elastic.h"
#include "tools/run/launch.h"

namespace tutti::tool {
namespace {

constexpr double kMaxTimeoutS = 1e8;

struct RunOptions {
  std::int32_t ranks = 0;
  std::int64_t grace_ms = 2000;
  double timeout_s = 0;
  bool no_prefix = false;
  bool shared_heap = false;
  std::string elastic;  // "MIN:MAX"; empty: not elastic
  ElasticBounds bounds;
  double rejoin_s = 60;
};

// The path of libtutti_heap.so: in the folder `lib` beside the folder of this program, as in a build folder, or in the
// folder for libraries of an installation. Empty: there is none.
std::string heap_library() {
  std::array<char, PATH_MAX> path = {};
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) < 0) return {};
  const std::filesystem::path prefix = std::filesystem::path(path.data()).parent_path().parent_path();
  for (const char* folder : {"lib", TUTTI_LIBRARY_FOLDER}) {
    const std::filesystem::path library = prefix / folder / "libtutti_heap.so";
    if (::access(library.c_str(), R_OK) == 0) return library.string();
  }
  return {};
}

int run(RunOptions options, const std::vector<std::string>& program) {
  if (!options.elastic.empty()) {
    const Status read = parse_elastic(options.elastic, options.ranks, options.bounds);
    if (!read) {
      return report_usage("run", read.error().message);
    }
  }
  if (options.ranks == 0) {
    return report_usage("run", "the number of ranks is missing; write -n N or --elastic MIN:MAX");
  }
  options.bounds.rejoin = std::chrono::milliseconds(std::int64_t(options.rejoin_s * 1000));
  if (program.empty()) {
    return report_usage("run", fmt::format("no program; write `tutti run -n {} -- PROGRAM ARGS...`", options.ranks));
  }
  const std::string preload = options.shared_heap ? heap_library() : "";
  if (options.shared_heap && preload.empty()) {
    fmt::print(stderr, "tutti run: --shared-heap: this installation has no libtutti_heap.so in lib or {}\n",
               TUTTI_LIBRARY_FOLDER);
    return kExitFailure;
  }
  // The dynamic linker would read such a path as several paths.
  if (preload.find_first_of(" :") != std::string::npos) {
    fmt::print(stderr, "tutti run: --shared-heap: move \"{}\" to a path without spaces and colons\n", preload);
    return kExitFailure;
  }
  const Result<int> status =
      launch({.name = "tutti run",
              .command = program,
              .ranks = options.ranks,
              .grace = std::chrono::milliseconds(options.grace_ms),
              .timeout = std::chrono::milliseconds(std::int64_t(options.timeout_s * 1000)),
              .prefix = options.no_prefix ? Prefix::kNone : Prefix::kAll,
              .preload = preload,
              .elastic = options.elastic.empty() ? std::nullopt : std::optional(options.bounds)});
  if (status) return *status;
  fmt::print(stderr, "tutti run: {}\n", status.error().message);
  return kExitFailure;
}

}  // namespace

void add_run_command(CLI::App& app, std::vector<std::string> program, int& exit_status) {
  auto options = std::make_shared<RunOptions>();  // shared with the callback, which runs after this function
  CLI::App* command = app.add_subcommand("run", "Start the ranks of a job here: tutti run -n N -- PROGRAM ARGS...");
  command->footer(
      "Each line of the ranks' output gets the prefix \"[rank] \". If a rank fails, the others get the grace period, "
      "then\n"
      "SIGTERM, then after 1 s SIGKILL. Exit status: that of the first rank that failed, 128 + N for signal N; 124 "
      "after\n"
      "--timeout-s; 127 or 126 if PROGRAM cannot be found or executed.");
  command->add_option("-n,--ranks", options->ranks, "Number of ranks")->check(number_in(1, kMaxLocalRanks));
  command->add_option(
      "--elastic", options->elastic,
      "MIN:MAX: start MAX ranks, replace those that die, continue while at least MIN are alive (docs/elastic.md)");
  command->add_option("--max-restarts", options->bounds.restarts, "With --elastic: how many dead ranks are replaced")
      ->check(number_in(0, 1'000'000))
      ->capture_default_str();
  command
      ->add_option(
          "--rejoin-s", options->rejoin_s,
          "With --elastic: seconds after which a live rank that does not join the others is killed and replaced")
      ->check(number_in(0.01, kMaxTimeoutS))
      ->capture_default_str();
  command
      ->add_option("--grace-ms", options->grace_ms,
                   "Grace period of the other ranks after the first failure, in milliseconds")
      ->check(number_in(std::int64_t{0}, std::int64_t{3'600'000}))
      ->capture_default_str();
  command->add_option("--timeout-s", options->timeout_s, "End the job after this many seconds; 0: never")
      ->check(number_in(0.0, kMaxTimeoutS));
  command->add_flag(
      "--shared-heap", options->shared_heap,
      "Allocate blocks of 32 KiB or more in shared memory, so that collectives need no copies (docs/heap.md)");
  command->add_flag("--no-prefix", options->no_prefix, "Print the ranks' lines without a prefix");
  command->callback([options, program = std::move(program), &exit_status] { exit_status = run(*options, program); });
}

}  // namespace tutti::tool
