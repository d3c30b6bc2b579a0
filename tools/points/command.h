// The command `tutti points`, which compares the predictions of the cost model with published measurements
// (docs/points.md).
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Adds the command to `app`. Stores the result in `exit_code` when the command has run.
void add_points_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
