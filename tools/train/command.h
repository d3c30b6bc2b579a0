// The command `tutti train`, which starts the ranks of a training run. The ranks execute the training harness, a
// separate program tutti-train in the same folder as tutti. The harness exists only if libtorch was installed when
// Tutti was built (docs/training.md).
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::tool {

// Adds the command to `app`. `arguments` is the whole command line after the program's name. Stores the exit status in
// `exit_status` when the command has run. In a rank of a job, for --help, and if no argument follows the word `train`,
// the harness replaces this process, so the command returns only if it fails.
void add_train_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status);

}  // namespace tutti::tool
