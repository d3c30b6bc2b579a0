// `tutti train`: starts the ranks of a training. The harness itself is a program of its own, tutti-train, that stands
// beside this one where libtorch was there to build it with: docs/training.md.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// `arguments`: the whole command line after the program's name. Sets `exit_status` when the command has run.
void add_train_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status);

}  // namespace tutti::tool
