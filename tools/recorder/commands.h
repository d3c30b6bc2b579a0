// `tutti top` and `tutti doctor`: what flight recorders show of running, hung and dead jobs.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Set `exit_status` when the command has run: 0 also where the recordings tell of a failure; 1 where there is none to
// read, or a file is none, or the trace cannot be written.
void add_top_command(CLI::App& app, int& exit_status);
void add_doctor_command(CLI::App& app, int& exit_status);

}  // namespace tutti::tool
