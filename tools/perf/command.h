// `tutti perf`: measures and checks a collective. docs/run.md has the columns, docs/perf-json.md the file format.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// `arguments`: the whole command line after the program's name, with which copies of this program are started as ranks.
// Sets `exit_status` when the command has run.
void add_perf_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status);

}  // namespace tutti::tool
