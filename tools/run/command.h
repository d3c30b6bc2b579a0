// `tutti run`: starts the ranks of a job on this machine. docs/run.md says what it promises.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// `program` is what stood after "--" on the command line. Sets `exit_status` when the command has run.
void add_run_command(CLI::App& app, std::vector<std::string> program, int& exit_status);

}  // namespace tutti::tool
