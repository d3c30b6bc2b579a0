// The commands `tutti top` and `tutti doctor`, which show and diagnose running, hung and dead jobs from the recordings
// of their flight recorders.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Add the commands to `app`. They store the result in `exit_status` when they have run: 0 even if the recordings show
// a failure; 1 if there is no recording, if a file is not a recording, or if the trace cannot be written.
void add_top_command(CLI::App& app, int& exit_status);
void add_doctor_command(CLI::App& app, int& exit_status);

}  // namespace tutti::tool
