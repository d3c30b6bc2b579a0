// The command `tutti perf`, which measures and checks a collective. docs/run.md describes the columns of its table,
// docs/perf-json.md the formats of the JSON and CSV files.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// Adds the command to `app`. `arguments` is the whole command line after the program's name: to start ranks, the
// command starts copies of this program with these arguments. Stores the exit status in `exit_status` when the command
// has run.
void add_perf_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status);

}  // namespace tutti::tool
