// The command `tutti tune`. It measures the costs of this machine's parts, explains the tuner's selections, and
// compares them with all other algorithms. docs/tune.md describes it for users.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// Adds the command to `app`. `arguments` is the whole command line after the program's name; copies of this program
// are started with it as ranks. Stores the result in `exit_status` when the command has run.
void add_tune_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status);

}  // namespace tutti::tool
