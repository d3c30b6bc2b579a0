// `tutti tune`: measures what this machine's parts cost, explains the tuner's choices, and compares them with all that
// there is. docs/tune.md is the page for people.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// `arguments`: the whole command line after the program's name, with which copies of this program are started as ranks.
// Sets `exit_status` when the command has run.
void add_tune_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status);

}  // namespace tutti::tool
