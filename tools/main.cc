// The tutti command: registers the sub-commands, parses the command line, and runs one sub-command. Exit statuses: 0
// success; 1 the command was tried and failed; 2 the command line or a TUTTI_* variable is invalid, or asks for
// something that is not supported (common/exit_status.h). `run`, `perf`, `train` and `tune --regret`, which start
// ranks, can also return the status of a rank that failed, or another status of launch(): 124 after a timeout, 126 or
// 127 if the program cannot be started, 128 + N if signal N ended a rank or the job (docs/run.md).
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/validators.h"
#include "tools/perf/command.h"
#include "tools/plan/command.h"
#include "tools/plan/verify_command.h"
#include "tools/points/command.h"
#include "tools/recorder/commands.h"
#include "tools/run/command.h"
#include "tools/sim/command.h"
#include "tools/topo/command.h"
#include "tools/train/command.h"
#include "tools/tune/command.h"
#include "tutti/version.h"

namespace tutti::tool {
namespace {

// Removes the first "--" and everything after it from `arguments`, and returns the words after the "--": they are the
// program that `tutti run` starts and its arguments, which must not be parsed as options of tutti. Empty: there is no
// "--", or nothing after it.
std::vector<std::string> split_off_program(std::vector<std::string>& arguments) {
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  if (mark == arguments.end()) return {};
  std::vector<std::string> program(mark + 1, arguments.end());
  arguments.erase(mark, arguments.end());
  return program;
}

// The message for the first unknown sub-command or unknown long option in `words`, for example "unknown option
// --algoritm; did you mean --algorithm?". Empty if there is none, so the error of the command line is a different one.
std::string unknown_word(const CLI::App& app, const std::vector<std::string>& words) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  std::vector<std::string> known;
  if (commands.empty()) {
    for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  } else {
    for (const CLI::Option* option : commands.front()->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  const std::vector<std::string_view> names(known.begin(), known.end());
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool relevant = commands.empty() ? !name.starts_with("-") : name.starts_with("--");
    if (!relevant || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string_view nearest = nearest_name(name, names);
    return fmt::format("unknown {} {}{}", commands.empty() ? "command" : "option", name,
                       nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
  }
  return {};
}

// For a command line of `tutti run` without "--" before the program, returns the corrected line: "tutti run -n 2 -- sh
// -c x" for "tutti run -n 2 sh -c x". Empty if the line has no program, or if an option before the program is unknown.
std::string marked_program(const CLI::App& run, const std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (!words[i].starts_with("-")) {
      const auto program = words.begin() + static_cast<std::ptrdiff_t>(i);
      return fmt::format("tutti {} -- {}", fmt::join(words.begin(), program, " "),
                         fmt::join(program, words.end(), " "));
    }
    const bool is_long = words[i].starts_with("--");
    const std::string name = is_long ? words[i].substr(0, words[i].find('=')) : words[i].substr(0, 2);
    const CLI::Option* option = run.get_option_no_throw(name);
    if (option == nullptr) return {};
    const bool value_follows = option->get_expected_min() > 0 && name == words[i];
    if (value_follows) ++i;
  }
  return {};
}

// The most helpful message for the error `error` in a command line. `words` is the line without the part from "--" on,
// and `has_mark` is whether the line contains "--".
std::string fault_of(const CLI::App& app, const std::vector<std::string>& words, bool has_mark,
                     const CLI::ParseError& error) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  if (!has_mark && !commands.empty() && commands.front()->get_name() == "run") {
    const std::string marked = marked_program(*commands.front(), words);
    if (!marked.empty()) return fmt::format("-- is missing before the program; write `{}`", marked);
  }
  const std::string unknown = unknown_word(app, words);
  return unknown.empty() ? describe_parse_error(error) : unknown;
}

// For the commands in kCommands, reports a TUTTI_* variable that is unknown or has an invalid value, and returns the
// exit status; nothing if all are valid. These commands need the check, because they create no communicator in this
// process, which would report the variable (only a process that `tune` has started as a rank creates one). Asking for
// --help skips the check. `perf` and `train` check the variables themselves before they start ranks. `run` leaves the
// check to the program that it starts, which may change the variables.
std::optional<int> check_environment(const std::vector<std::string>& words) {
  constexpr std::string_view kCommands[] = {"plan", "points", "verify", "topo",   "sim",
                                            "tune", "top",    "doctor", "metrics"};
  if (words.empty() || std::find(std::begin(kCommands), std::end(kCommands), words.front()) == std::end(kCommands)) {
    return {};
  }
  const auto asks_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (std::any_of(words.begin(), words.end(), asks_help)) return {};
  return report_environment(words.front());
}

int run_tool(std::vector<std::string> arguments) {
  int exit_status = kExitSuccess;
  CLI::App app("Tutti: collective communication, from the plan to the wire.", "tutti");
  app.set_version_flag("--version", "tutti " + std::string(version()));
  app.require_subcommand(1);
  std::vector<std::string> perf_arguments = arguments;
  std::vector<std::string> tune_arguments = arguments;
  std::vector<std::string> train_arguments = arguments;
  const bool has_mark = std::find(arguments.begin(), arguments.end(), "--") != arguments.end();
  std::vector<std::string> program = split_off_program(arguments);
  const bool stray_program = !program.empty() && (arguments.empty() || arguments.front() != "run");
  add_run_command(app, std::move(program), exit_status);
  add_perf_command(app, std::move(perf_arguments), exit_status);
  add_plan_command(app, exit_status);
  add_points_command(app, exit_status);
  add_verify_command(app, exit_status);
  add_topo_command(app, exit_status);
  add_sim_command(app, exit_status);
  add_top_command(app, exit_status);
  add_doctor_command(app, exit_status);
  add_metrics_command(app, exit_status);
  add_tune_command(app, std::move(tune_arguments), exit_status);
  add_train_command(app, std::move(train_arguments), exit_status);
  const std::vector<std::string> words = arguments;
  if (const std::optional<int> status = check_environment(words)) return *status;
  try {
    if (stray_program) throw CLI::ExtrasError({"--"});
    std::reverse(arguments.begin(), arguments.end());  // CLI11 expects the arguments in reverse order
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::vector<CLI::App*> commands = app.get_subcommands();
    const std::string command = commands.empty() ? "tutti" : "tutti " + commands.front()->get_name();
    fmt::print(stderr, "{}: {}\nSee {} --help.\n", command, fault_of(app, words, has_mark, error), command);
    return kExitUsage;
  }
  return exit_status;
}

// Opens /dev/null at those of the descriptors 0 to 2 that the caller has closed. Without this, the next file or socket
// that is opened would get one of these numbers, and text that is printed would be written to it. Returns false if it
// fails.
bool open_standard_descriptors() {
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd < 0) return false;
    if (fd > STDERR_FILENO) return ::close(fd) == 0;
  }
}

}  // namespace
}  // namespace tutti::tool

int main(int argc, char** argv) {
  if (!tutti::tool::open_standard_descriptors()) return tutti::tool::kExitFailure;
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const int exit_status = tutti::tool::run_tool(words);
    if (exit_status != tutti::tool::kExitSuccess) return exit_status;
    const std::string command = words.empty() || words.front().starts_with("-") ? "" : words.front();
    return tutti::tool::flush_output(command) ? exit_status : tutti::tool::kExitFailure;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tutti: {}\n", error.what());
    return tutti::tool::kExitFailure;
  }
}
