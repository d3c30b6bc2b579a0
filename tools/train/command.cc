#include "tools/train/command.h"

#include <errno.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "tools/common/exit_status.h"
#include "tools/common/messages.h"
#include "tools/run/elastic.h"
#include "tools/run/launch.h"
#include "topology/memory.h"

namespace tutti::tool {
namespace {

constexpr std::int32_t kDefaultRanks = 2;
// The exit status with which tutti-train reports an error that a replacement of the rank would repeat.
constexpr int kExitNoRestart = 3;
constexpr std::int32_t kMostRestarts = 1'000'000;
constexpr double kMostRejoinS = 1e8;

int usage_error(const std::string& message) {
  fmt::print(stderr, "tutti train: {}\nSee tutti train --help.\n", message);
  return kExitUsage;
}

// The path of the training harness, tutti-train; empty if this build has none.
std::string program() {
  std::array<char, PATH_MAX> path = {};
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) < 0) return {};
  const std::string self = path.data();
  const std::string harness = self.substr(0, self.rfind('/') + 1) + "tutti-train";
  return ::access(harness.c_str(), X_OK) == 0 ? harness : std::string();
}

// Removes all occurrences of an option and its value from `words`, and returns the value. The forms are "--name VALUE"
// and "--name=VALUE" or, for a short name, "-n VALUE" and "-nVALUE". If the option occurs several times, the last value
// counts. Returns an empty text if the option has no value ("--name=", or the last word), and nothing if the option is
// absent.
std::optional<std::string> take(std::vector<std::string>& words, const std::string& name) {
  std::optional<std::string> value;
  const bool is_long = name.starts_with("--");
  for (std::size_t i = 0; i < words.size();) {
    const bool alone = words[i] == name;
    const std::string glued = is_long ? name + "=" : name;
    if (!alone && !words[i].starts_with(glued)) {
      ++i;
      continue;
    }
    const bool has_next = i + 1 < words.size();
    value = !alone ? words[i].substr(glued.size()) : has_next ? words[i + 1] : std::string();
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
    words.erase(at, at + (alone && has_next ? 2 : 1));
  }
  return value;
}

template <class Number>
bool parse(const std::string& text, Number least, Number most, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [last, wrong] = std::from_chars(text.data(), end, value);
  return wrong == std::errc() && last == end && value >= least && value <= most;
}

// The options of `tutti train` that concern the start of the ranks. The harness does not get them as they were given,
// but only the number of ranks (--ranks=N) and, in an elastic job, --elastic-rank.
struct Launch {
  std::int32_t ranks = 0;
  std::optional<ElasticBounds> elastic;
};

// Moves the options for the start of the ranks from `words` to `launch`. Returns an error message, or an empty text.
std::string take_launch(std::vector<std::string>& words, Launch& launch) {
  for (const char* name : {"--ranks", "-n"}) {
    const auto text = take(words, name);
    if (text && !parse<std::int32_t>(*text, 1, kMaxLocalRanks, launch.ranks)) {
      return fmt::format("{}: {}", name, not_a_number(*text, 1, kMaxLocalRanks));
    }
  }
  const auto elastic = take(words, "--elastic");
  const auto restarts = take(words, "--max-restarts");
  const auto rejoin = take(words, "--rejoin-s");
  if (!elastic) return restarts || rejoin ? "--max-restarts and --rejoin-s need --elastic" : "";
  launch.elastic.emplace();
  launch.elastic->no_restart_status = kExitNoRestart;
  if (const Status parsed = parse_elastic(*elastic, launch.ranks, *launch.elastic); !parsed)
    return parsed.error().message;
  if (restarts && !parse<std::int32_t>(*restarts, 0, kMostRestarts, launch.elastic->restarts)) {
    return "--max-restarts: " + not_a_number(*restarts, 0, kMostRestarts);
  }
  double rejoin_s = 60;
  if (rejoin && !parse(*rejoin, 0.01, kMostRejoinS, rejoin_s))
    return "--rejoin-s: " + not_a_number(*rejoin, 0.01, kMostRejoinS);
  launch.elastic->rejoin = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * rejoin_s));
  return {};
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

// Replaces this process by `command` (exec). Returns an exit status only if that fails.
int exec_program(std::vector<std::string> command) {
  ::execv(command.front().c_str(), pointers(command).data());
  fmt::print(stderr, "tutti train: {} cannot be started: {}\n", command.front(), std::strerror(errno));
  return kExitFailure;
}

// Runs `command` in a child process and returns its exit status; kExitFailure if a signal ended it or it was not
// started.
int wait_for(const std::vector<std::string>& command) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(exec_program(command));
  int status = 0;
  while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (pid < 0) fmt::print(stderr, "tutti train: no process can be started: {}\n", std::strerror(errno));
  if (pid > 0 && WIFSIGNALED(status)) {
    fmt::print(stderr, "tutti train: {} was ended by signal {}\n", command.front(), WTERMSIG(status));
  }
  return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailure;
}

bool is_rank() { return ::getenv("TUTTI_RANK") != nullptr; }

int run_train(std::vector<std::string> words) {
  std::vector<std::string> command = {program()};
  if (command.front().empty()) {
    fmt::print(
        stderr,
        "tutti train: this build has no training harness: it needs libtorch. `scripts/setup --train` installs it "
        "(libtorch-dev), then build again\n");
    return kExitFailure;
  }
  // By default, OpenMP threads that wait give their core to other ranks. The user may have set another policy.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const auto is_elastic = [](const std::string& word) { return word == "--elastic" || word.starts_with("--elastic="); };
  if (is_rank() && std::any_of(words.begin(), words.end(), is_elastic)) {
    return usage_error(
        "--elastic is for `tutti train` or `tutti run`, which start the ranks, but this process is a rank");
  }
  if (words.empty() || std::any_of(words.begin(), words.end(), is_help) || is_rank()) {
    command.insert(command.end(), words.begin(), words.end());
    return exec_program(command);
  }
  Launch launch_options;
  if (const std::string message = take_launch(words, launch_options); !message.empty()) return usage_error(message);
  if (const std::optional<int> status = report_environment("train")) return *status;
  if (launch_options.ranks == 0) launch_options.ranks = kDefaultRanks;
  command.insert(command.end(), words.begin(), words.end());
  command.push_back(fmt::format("--ranks={}", launch_options.ranks));
  if (launch_options.elastic) command.emplace_back("--elastic-rank");
  if (::isatty(STDERR_FILENO) == 1) command.emplace_back("--terminal");
  std::vector<std::string> check = command;
  check.emplace_back("--check");
  check.push_back(fmt::format("--memory-bytes={}", available_memory().shared_bytes()));
  if (const int status = wait_for(check); status != kExitSuccess) return status;
  const Result<int> status = launch({.name = "tutti train",
                                     .command = std::move(command),
                                     .ranks = launch_options.ranks,
                                     .prefix = Prefix::kNone,
                                     .elastic = launch_options.elastic});
  if (status) return launch_options.elastic && *status == kExitNoRestart ? kExitFailure : *status;
  fmt::print(stderr, "tutti train: {}\n", status.error().message);
  return kExitFailure;
}

}  // namespace

void add_train_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a reference model on the ranks of a job, with a choice of parallel strategies");
  command->set_help_flag();  // tutti-train prints the help
  command->allow_extras();
  command->prefix_command();
  if (!arguments.empty()) arguments.erase(arguments.begin());  // remove the word "train"
  command->callback([arguments = std::move(arguments), &exit_status] { exit_status = run_train(arguments); });
}

}  // namespace tutti::tool
