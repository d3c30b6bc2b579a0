#include "tools/recorder/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/config.h"
#include "base/recording.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/validators.h"
#include "tools/recorder/doctor.h"
#include "tools/recorder/flight_dump.h"
#include "tools/recorder/metrics.h"
#include "tools/recorder/recording.h"
#include "tools/recorder/top.h"
#include "tools/recorder/trace.h"

namespace tutti::tool {
namespace {

// `tutti doctor` prints at most this many messages about unreadable recordings that the user did not name. If there are
// more, the last message only states the number of the remaining ones.
constexpr std::size_t kMostReadErrors = 3;

// The options with which the user selects recordings.
struct RecordingSelection {
  std::string folder;  // empty: TUTTI_RECORD_DIR, or the folders that ranks of this user use by default
  // 8 hexadecimal digits. Empty: all jobs (top; doctor with named files), or the newest job (doctor without named
  // files).
  std::string job;
};

struct TopCommand {
  RecordingSelection selection;
  bool once = false;
  std::int64_t interval_ms = 1000;
};

struct DoctorCommand {
  RecordingSelection selection;
  std::vector<std::string> files;
  std::string trace;
  std::string torch_dump;  // the beginning of the names of the dumps; empty: no dumps
};

struct MetricsCommand {
  RecordingSelection selection;
  std::vector<std::string> files;
  std::string output;  // empty: standard output
  bool prometheus_format = false;
  std::optional<std::int64_t> interval_ms{};  // empty: once
  std::int64_t keep_s = 600;
};

void add_selection_options(CLI::App& command, RecordingSelection& selection) {
  command.add_option("--job", selection.job, "Only this job: its number, 8 hexadecimal digits")
      ->check([](const std::string& job) {
        const bool right = job.size() == 8 && job.find_first_not_of("0123456789abcdef") == std::string::npos;
        return right ? std::string()
                     : fmt::format("\"{}\" is not a job; give 8 hexadecimal digits, as `tutti top` shows them", job);
      });
  command.add_option("--dir", selection.folder,
                     "Folder of the recordings (default: TUTTI_RECORD_DIR, or the folders that ranks use)");
}

Result<std::vector<std::string>> folders_of(const RecordingSelection& selection) {
  if (!selection.folder.empty()) return std::vector<std::string>{selection.folder};
  const auto config = parse_config(environment_variables());
  if (!config) return config.error();
  return recording::folders(config->record_dir, process_environment());
}

// Returns only the recordings of the job with this number, written with 8 hexadecimal digits.
std::vector<Recording> of_job(std::vector<Recording> all, const std::string& job) {
  std::erase_if(all, [&](const Recording& one) { return fmt::format("{:08x}", one.job) != job; });
  return all;
}

std::string newest_job(const std::vector<Recording>& all) {
  const auto newest = std::max_element(all.begin(), all.end(),
                                       [](const Recording& a, const Recording& b) { return a.made_ns < b.made_ns; });
  return fmt::format("{:08x}", newest->job);
}

int run_top(const TopCommand& command) {
  const auto folders = folders_of(command.selection);
  if (!folders) return report("top", folders.error());
  const bool clears = !command.once && isatty(STDOUT_FILENO) == 1;
  while (true) {
    std::vector<std::string> read_errors;
    std::vector<Recording> recordings = read_recordings(*folders, read_errors);
    if (!command.selection.job.empty()) recordings = of_job(std::move(recordings), command.selection.job);
    std::string table = top_table(recordings, recording::unix_ns());
    const bool nothing = table.empty();
    if (nothing) table = fmt::format("no job runs here with recordings in {}\n", fmt::join(*folders, ", "));
    fmt::print("{}{}", clears ? "\033[H\033[2J" : "", table);
    if (!flush_output("top")) return kExitFailure;
    if (command.once) return nothing ? kExitFailure : kExitSuccess;
    std::this_thread::sleep_for(std::chrono::milliseconds(command.interval_ms));
  }
}

// Prints the errors of files that the user did not name.
void print_read_errors(const std::vector<std::string>& read_errors) {
  const std::size_t printed = read_errors.size() <= kMostReadErrors ? read_errors.size() : kMostReadErrors - 1;
  for (std::size_t i = 0; i < printed; ++i) fmt::print(stderr, "tutti doctor: {}\n", read_errors[i]);
  // The other files are only counted, because many unreadable files are usually those of processes that were killed
  // while they created their recordings.
  if (printed < read_errors.size()) {
    fmt::print(stderr, "tutti doctor: and {} more files that cannot be read\n", read_errors.size() - printed);
  }
}

// Reads the files that the user has named; if the user has also named a job, only its recordings are returned.
Result<std::vector<Recording>> read_named(const std::vector<std::string>& files, const std::string& job) {
  std::vector<Recording> recordings;
  for (const std::string& path : files) {
    auto read = read_recording(path);
    if (!read) return read.error();
    recordings.push_back(*std::move(read));
  }
  sort_recordings(recordings);
  if (!job.empty()) recordings = of_job(std::move(recordings), job);
  if (!recordings.empty()) return recordings;
  return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
               fmt::format("none of the files is a recording of job {}: leave --job out, or name other files", job)};
}

// Reads the named files. If there are none: reads the recordings of the named job, or of the newest job.
Result<std::vector<Recording>> read_for_doctor(const DoctorCommand& command) {
  if (!command.files.empty()) return read_named(command.files, command.selection.job);
  auto folders = folders_of(command.selection);
  if (!folders) return folders.error();
  std::vector<std::string> read_errors;
  std::vector<Recording> recordings = read_recordings(*folders, read_errors);
  print_read_errors(read_errors);
  if (!recordings.empty()) {
    const std::string job = command.selection.job.empty() ? newest_job(recordings) : command.selection.job;
    recordings = of_job(std::move(recordings), job);
  }
  if (recordings.empty()) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
                 fmt::format("no recordings{} in {}: name the files, or their folder with --dir",
                             command.selection.job.empty() ? "" : " of job " + command.selection.job,
                             fmt::join(*folders, ", "))};
  }
  return recordings;
}

// Writes the dump of each rank to a file whose name is `prefix` and the number of the rank.
Status write_torch_dumps(const std::string& prefix, std::vector<Recording> recordings) {
  if (recordings.front().job != recordings.back().job) {  // they are sorted by job
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 "--torch-dump: the files are recordings of several jobs: choose one with --job"};
  }
  keep_newest_of_each_rank(recordings);
  const FlightDumps made = flight_dumps(recordings);
  for (const FlightDump& dump : made.dumps) {
    TUTTI_TRY(write_file(fmt::format("{}{}", prefix, dump.rank), dump.pickle));
  }
  if (made.unmatched_calls > 0) {
    fmt::print(stderr,
               "tutti doctor: {} calls are in no dump, because their counterparts on other ranks are not known "
               "(docs/recorder.md)\n",
               made.unmatched_calls);
  }
  return {};
}

int run_doctor(const DoctorCommand& command) {
  const auto recordings = read_for_doctor(command);
  if (!recordings) return report("doctor", recordings.error());
  const std::int64_t now_ns = recording::unix_ns();
  fmt::print("{}", doctor_report(*recordings, now_ns));
  if (!flush_output("doctor")) return kExitFailure;
  Status written;
  if (!command.trace.empty()) written = write_file(command.trace, chrome_trace(*recordings, now_ns));
  if (written.ok() && !command.torch_dump.empty()) written = write_torch_dumps(command.torch_dump, *recordings);
  return written.ok() ? kExitSuccess : report("doctor", written.error());
}

// Reads the named files or, if there are none, the recordings of this machine's ranks. The latter may be none, because
// an idle machine has metrics, too. Sets `unreadable` to the number of files that the user did not name and that cannot
// be read, for example because the library of another version has written them.
Result<std::vector<Recording>> read_for_metrics(const MetricsCommand& command, std::int64_t now_ns,
                                                std::size_t& unreadable) {
  if (!command.files.empty()) return read_named(command.files, command.selection.job);
  const auto folders = folders_of(command.selection);
  if (!folders) return folders.error();
  std::vector<std::string> read_errors;
  std::vector<Recording> recordings = read_recordings(*folders, read_errors);
  unreadable = read_errors.size();
  keep_recent_of_this_machine(recordings, command.keep_s * 1'000'000'000, now_ns);
  if (!command.selection.job.empty()) recordings = of_job(std::move(recordings), command.selection.job);
  return recordings;
}

Status write_metrics(const MetricsCommand& command) {
  const std::int64_t now_ns = recording::unix_ns();
  std::size_t unreadable = 0;
  auto recordings = read_for_metrics(command, now_ns, unreadable);
  if (!recordings) return recordings.error();
  keep_newest_of_each_rank(*recordings);
  const auto format = command.prometheus_format ? MetricsFormat::kPrometheus : MetricsFormat::kOpenMetrics;
  const std::string text = metrics_text(*recordings, unreadable, format, now_ns);
  if (!command.output.empty()) return write_file(command.output, text);
  // fmt::print would throw if the text cannot be written. flush_output() reports the error.
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

int run_metrics(const MetricsCommand& command) {
  if (command.interval_ms && command.output.empty()) {
    return report_usage("metrics", "--interval-ms needs --output, because each interval replaces the whole text");
  }
  while (true) {
    const Status written = write_metrics(command);
    if (!written.ok()) return report("metrics", written.error());
    if (!flush_output("metrics")) return kExitFailure;
    if (!command.interval_ms) return kExitSuccess;
    std::this_thread::sleep_for(std::chrono::milliseconds(*command.interval_ms));
  }
}

}  // namespace

void add_top_command(CLI::App& app, int& exit_status) {
  auto command = std::make_shared<TopCommand>();  // shared with the callback, which outlives this function
  CLI::App* top = app.add_subcommand("top", "Show the ranks of the jobs that run on this machine, live");
  add_selection_options(*top, command->selection);
  top->add_flag("--once", command->once, "Print one table and exit, with status 1 if no job runs");
  top->add_option("--interval-ms", command->interval_ms, "Time between two tables in milliseconds, 100 to 60000")
      ->check(number_in(100, 60'000));
  top->callback([command, &exit_status] { exit_status = run_top(*command); });
}

void add_doctor_command(CLI::App& app, int& exit_status) {
  auto command = std::make_shared<DoctorCommand>();  // shared with the callback, which outlives this function
  CLI::App* doctor =
      app.add_subcommand("doctor", "Diagnose a job that hangs or has died: what happened, and which ranks caused it");
  doctor->add_option("files", command->files, "Recordings of one or several jobs (default: all of the newest job)");
  add_selection_options(*doctor, command->selection);
  doctor->add_option("--trace", command->trace, "Also write a trace for Perfetto (ui.perfetto.dev) to this file");
  doctor->add_option(
      "--torch-dump", command->torch_dump,
      "Also write dumps of PyTorch's flight recorder, for torchfrtrace: one file for each rank, with this "
      "name and the rank's number, for example dumps/rank_");
  doctor->callback([command, &exit_status] { exit_status = run_doctor(*command); });
}

void add_metrics_command(CLI::App& app, int& exit_status) {
  auto command = std::make_shared<MetricsCommand>();  // shared with the callback, which outlives this function
  CLI::App* metrics =
      app.add_subcommand("metrics", "Write metrics of the ranks on this machine for Prometheus, from their recordings");
  metrics->add_option("files", command->files, "Recordings (default: all ranks on this machine)");
  add_selection_options(*metrics, command->selection);
  metrics->add_option("--output", command->output,
                      "File to write, which is replaced as a whole (default: standard output)");
  metrics
      ->add_option_function<std::string>(
          "--format", [command](const std::string& name) { command->prometheus_format = name == "prometheus"; },
          "openmetrics (default), or prometheus: the older text format, which node_exporter reads")
      ->check(name_in({"openmetrics", "prometheus"}));
  metrics
      ->add_option("--interval-ms", command->interval_ms,
                   "Write the file again and again, with this pause in milliseconds, 100 to 3600000")
      ->check(number_in(100, 3'600'000));
  metrics
      ->add_option("--keep-s", command->keep_s,
                   "How long ranks that have ended or died remain in the metrics, in seconds, 0 to 86400")
      ->capture_default_str()
      ->check(number_in(0, 86'400));
  metrics->callback([command, &exit_status] { exit_status = run_metrics(*command); });
}

}  // namespace tutti::tool
