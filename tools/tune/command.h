// The command `tutti tune`. It measures the costs of communication on this machine, explains which algorithms the
// library selects, and compares them with all other algorithms. docs/tune.md describes it for users.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// Adds the command to `app`. `arguments` is the whole command line after the program's name. With --regret, the command
// starts this program again with these arguments and --csv FILE, as the ranks of a job: one job for each transport and
// each number of ranks. Stores the exit status in `exit_status` when the command has run.
void add_tune_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status);

}  // namespace tutti::tool
