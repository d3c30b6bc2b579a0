// The command runs in one of three modes: as one rank of a job (if the variables of a launcher are set; find_job() has
// the exceptions), as the launcher that starts copies of this program as ranks, or as one process in which all ranks
// are threads.
#include "tools/perf/command.h"

#include <errno.h>
#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/config.h"
#include "base/thread_group.h"
#include "bootstrap/launcher.h"
#include "cuda/driver.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/system_error.h"
#include "tools/perf/buffer.h"
#include "tools/perf/memory.h"
#include "tools/perf/options.h"
#include "tools/perf/rank.h"
#include "tools/perf/reference.h"
#include "tools/perf/report.h"
#include "tools/run/launch.h"
#include "tutti/communicator.h"

namespace tutti::tool {
namespace {

constexpr std::int32_t kDefaultRanks = 2;

int usage_error(const std::string& message) { return report_usage("perf", message); }

// Prints with a single write, so that the lines of several ranks are not mixed.
void print_error(std::int32_t rank, const Error& error) {
  const std::string prefix = rank >= 0 ? fmt::format("rank {}: ", rank) : "";
  fmt::print(stderr, "{}", fmt::format("tutti perf: {}{}\n", prefix, to_string(error)));
}

CommunicatorOptions communicator_options(const PerfOptions& options) {
  CommunicatorOptions result;
  result.transport = options.transport;
  result.setup_timeout = options.timeout;
  result.timeout = options.timeout;
  return result;
}

// The number of GPUs of this machine. 0 if the buffers are not GPU memory, or if no GPU can be used; in the second case
// the error is reported later, when a rank opens its GPU.
int count_devices(const PerfOptions& options) {
  if (options.memory != MemoryKind::kCuda) return 0;
  auto driver = cuda::Driver::open();
  if (!driver) return 0;
  return (*driver)->device_count().ok() ? *(*driver)->device_count() : 0;
}

Status write_files(const PerfOptions& options, const PerfReport& report) {
  if (!options.json_path.empty()) TUTTI_TRY(write_file(options.json_path, report.to_json(utc_now())));
  if (!options.csv_path.empty()) TUTTI_TRY(write_file(options.csv_path, report.to_csv()));
  return {};
}

// Runs the sweep. On rank 0, also writes the JSON and CSV files that the user has requested. Returns the number of
// wrong elements of all ranks together.
Result<std::uint64_t> measure(Communicator& communicator, const PerfOptions& options) {
  Result<std::string> transport = agree_on_transport(communicator);
  if (!transport) return transport.error();
  if (communicator.rank() != 0) return run_sweep(communicator, options, nullptr);
  PerfReport report(options, {.ranks = communicator.size(),
                              .nodes = communicator.nodes(),
                              .cores = usable_cores(),
                              .transport = *std::move(transport)});
  Result<std::uint64_t> wrong = run_sweep(communicator, options, &report);
  if (wrong) TUTTI_TRY(write_files(options, report));
  return wrong;
}

// Runs one rank, and prints its error if there is one. An error that all ranks have in the same way is printed by rank
// 0 only. Returns true if the rank had no error and no element of any rank was wrong.
bool run_rank(Communicator& communicator, const PerfOptions& options) {
  // All ranks must have the same options, and then get the same answer. run_perf() makes the same check earlier if it
  // knows the number of ranks.
  if (const Status fits = check_ranks(options, communicator.size()); !fits) {
    if (communicator.rank() == 0) print_error(-1, fits.error());
    return false;
  }
  const Result<std::uint64_t> wrong = measure(communicator, options);
  if (!wrong && !wrong.error().message.empty()) print_error(communicator.rank(), wrong.error());
  return wrong && *wrong == 0;
}

int run_as_rank(const PerfOptions& options, const LaunchInfo& launch) {
  if (options.threads) {
    return usage_error(fmt::format("--threads can't be used by a rank of a job ({})", describe(launch)));
  }
  CommunicatorOptions create_options = communicator_options(options);
  if (options.nodes > 0) {
    if (!launch.size)
      return usage_error("--nodes: the launcher does not report the number of ranks; set TUTTI_WORLD_SIZE");
    // Ranks are assigned to simulated machines in the same way as in Communicator::create_all().
    const std::int64_t node = std::int64_t{*launch.rank} * options.nodes / *launch.size;
    create_options.node_id = fmt::format("node {}", node);
  }
  const int devices = count_devices(options);
  if (devices > 0 && launch.rank) create_options.device = device_of(*launch.rank, options.ranks_per_gpu, devices);
  Result<std::unique_ptr<Communicator>> communicator = Communicator::create(create_options);
  if (!communicator) {
    print_error(launch.rank.value_or(-1), communicator.error());
    return kExitFailure;
  }
  const std::int32_t size = (*communicator)->size();
  if (options.ranks != 0 && options.ranks != size) {
    return usage_error(fmt::format("--ranks {}, but the job has {} ranks", options.ranks, size));
  }
  return run_rank(**communicator, options) ? kExitSuccess : kExitFailure;
}

int run_as_threads(const PerfOptions& options) {
  CommunicatorOptions create_options = communicator_options(options);
  const int devices = count_devices(options);
  for (std::int32_t rank = 0; rank < options.ranks && devices > 0; ++rank) {
    create_options.devices.push_back(device_of(rank, options.ranks_per_gpu, devices));
  }
  Result<std::vector<std::unique_ptr<Communicator>>> ranks =
      Communicator::create_all(options.ranks, create_options, std::max(options.nodes, 1));
  if (!ranks) {
    print_error(-1, ranks.error());
    return kExitFailure;
  }
  std::vector<char> succeeded(ranks->size(), 0);
  ThreadGroup threads;
  for (std::size_t rank = 0; rank < ranks->size(); ++rank) {
    threads.add([&, rank] {
      succeeded[rank] = run_rank(*(*ranks)[rank], options) ? 1 : 0;
      // If this rank had an error, abort() ends the calls in which other ranks wait for it. If elements were wrong, all
      // ranks get their number from the last all-reduce. A rank that is still in that all-reduce may then fail with
      // kAborted; the exit status is kExitFailure in both cases.
      if (succeeded[rank] == 0) (*ranks)[rank]->abort();
    });
  }
  threads.open();
  threads.join();
  for (char good : succeeded) {
    if (good == 0) return kExitFailure;
  }
  return kExitSuccess;
}

int run_as_processes(const PerfOptions& options, const std::vector<std::string>& arguments) {
  std::array<char, PATH_MAX> path = {};
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) < 0) {
    print_error(-1, system_error("cannot find this program's file", errno));
    return kExitFailure;
  }
  std::vector<std::string> command{path.data()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const Result<int> status =
      launch({.name = "tutti perf", .command = std::move(command), .ranks = options.ranks, .prefix = Prefix::kErrors});
  if (status) return *status;
  print_error(-1, status.error());
  return kExitFailure;
}

// The job of which this process is a rank. The result has no rank if the process is not a rank of a job. If TUTTI_RANK
// is set, the process is always a rank. If only the variables of another launcher (for example mpirun) are set, --ranks
// or --threads makes the process start a job of its own.
Result<LaunchInfo> find_job(const PerfOptions& options) {
  const EnvironmentVariables environment = process_environment();
  const bool ours = environment.contains("TUTTI_RANK");
  if (!ours && (options.ranks != 0 || options.threads)) return LaunchInfo{};
  return detect_launcher(environment);
}

int run_perf(const PerfArguments& given, const std::vector<std::string>& arguments) {
  Result<PerfOptions> options = resolve(given);
  if (!options) return usage_error(options.error().message);
  const Result<LaunchInfo> job = find_job(*options);
  if (!job) {
    print_error(-1, job.error());
    return kExitFailure;
  }
  const bool is_rank = job->rank.has_value();
  if (!is_rank) {
    if (const std::optional<int> status = report_environment("perf")) return *status;
  }
  if (!is_rank && options->ranks == 0) options->ranks = kDefaultRanks;
  // If the launcher does not report the number of ranks and --ranks is not given, the number is not known here (0).
  // Then run_rank() makes the check.
  if (const std::int32_t ranks = is_rank ? job->size.value_or(options->ranks) : options->ranks; ranks > 0) {
    if (const Status fits = check_ranks(*options, ranks); !fits) return usage_error(fits.error().message);
  }
  for (const std::string* path : {&options->json_path, &options->csv_path}) {
    if (path->empty()) continue;
    if (const Status writable = check_writable(*path); !writable) return report("perf", writable.error());
  }
  if (is_rank) return run_as_rank(*options, *job);
  if (const Status enough = check_memory_for_ranks(options->ranks); !enough) {
    print_error(-1, enough.error());
    return kExitFailure;
  }
  return options->threads ? run_as_threads(*options) : run_as_processes(*options, arguments);
}

void add_options(CLI::App& command, PerfArguments& given) {
  command
      .add_option("collective", given.collective,
                  "What to measure: all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather, "
                  "scatter, barrier, send_recv, ping_pong (half a round trip), one_way, or a v-variant: all_gather_v, "
                  "reduce_scatter_v, all_to_all_v, "
                  "gather_v, scatter_v")
      ->required();
  command.add_option("-b,--minbytes", given.min_bytes, "Smallest message: bytes, or with K, M, G (default 8)");
  command.add_option("-e,--maxbytes", given.max_bytes, "Largest message (default 64M)");
  command.add_option("-f,--stepfactor", given.step_factor, "Multiply the size by this factor at each step (default 2)");
  command.add_option("-i,--stepbytes", given.step_bytes, "Add this many bytes at each step instead of multiplying");
  command
      .add_option("-n,--iters", given.iterations, "Number of timed calls; 0: as many as fit in 0.2 s, from 5 to 2000")
      ->capture_default_str();
  command.add_option("-w,--warmup_iters", given.warmup_iterations, "Calls before the timed ones")
      ->capture_default_str();
  command.add_option("-c,--check", given.check, "Check every element: 0 or 1")->capture_default_str();
  command.add_option("-d,--datatype", given.data_type, "int8 ... float64, bfloat16, float8_e4m3, float8_e5m2, or all")
      ->capture_default_str();
  command.add_option("-o,--op", given.op, "sum, prod, min, max, avg, premulsum, or all")->capture_default_str();
  command.add_option("-r,--root", given.root, "Root rank of rooted collectives")->capture_default_str();
  command.add_option(
      "--ranks", given.ranks,
      "Number of ranks to start here (default 2). Without it, a rank that a launcher started joins that job");
  command.add_flag("--threads", given.threads, "Ranks as threads of this process instead of processes");
  command
      .add_option("--algorithm", given.algorithm,
                  "auto, or an algorithm of the collective; an unknown name prints the list")
      ->capture_default_str();
  command.add_option("--transport", given.transport,
                     "auto, shm, or tcp, verbs, ucx (also used inside a machine); default: TUTTI_TRANSPORT, or auto");
  command.add_option("--nodes", given.nodes,
                     "Treat the ranks as if they were on this many machines (no shared memory between), in equal "
                     "groups of consecutive ranks");
  command.add_option("--memory", given.memory, "plain, registered (with the communicator) or cuda (GPU memory)")
      ->capture_default_str();
  command
      .add_option("--ranks-per-gpu", given.ranks_per_gpu,
                  "With cuda memory: number of consecutive ranks that share a GPU")
      ->capture_default_str();
  command.add_option("--in-place", given.in_place, "0, 1 or both")->capture_default_str();
  command.add_option("--json", given.json_path, "Also write the results to this file, as JSON");
  command.add_option("--csv", given.csv_path,
                     "Also write the rows to this file, as CSV; columns have the names of the JSON fields");
  command.add_option("--corrupt", given.corrupt,
                     "Flip a bit of this rank's results before they are checked, to see that the check finds it");
  command.add_option("--timeout-s", given.timeout_s,
                     "Timeout of set-up and of each collective; 0: the library's default");
}

}  // namespace

void add_perf_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status) {
  auto given = std::make_shared<PerfArguments>();  // shared with the callback, which runs after this function
  CLI::App* command = app.add_subcommand("perf", "Measure a collective and check its results");
  add_options(*command, *given);
  command->footer(
      "Exit status: 0; 1 if a rank failed or an element was wrong; 2 for a wrong option; 128 + N if signal N ended a "
      "rank.");
  command->callback(
      [given, arguments = std::move(arguments), &exit_status] { exit_status = run_perf(*given, arguments); });
}

}  // namespace tutti::tool
