// The command `tutti run`, which starts the ranks of a job on this machine. docs/run.md describes its behaviour.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// Adds the command to `app`. `program` is the part of the command line after "--": the program that the ranks execute,
// and its arguments. Stores the exit status in `exit_status` when the command has run.
void add_run_command(CLI::App& app, std::vector<std::string> program, int& exit_status);

}  // namespace tutti::tool
