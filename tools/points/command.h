// The command `tutti points`, which compares the predictions of the cost model with published measurements
// (docs/points.md).
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Adds the command to `app`. When the command line selects this command, app.parse() runs it and stores its exit
// code in `exit_code`, which must outlive the parsing.
void add_points_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
