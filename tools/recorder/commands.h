// The commands `tutti top`, `tutti doctor` and `tutti metrics`, which show, diagnose and count running, hung and dead
// jobs from the recordings of their flight recorders.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Add the commands to `app`. When a command has run, it stores the result in `exit_status`: 0 for success, even if the
// recordings show a failure of the job; 1 if `doctor` finds no recording, or `top --once` no running job, if a named
// file cannot be read or is not a recording, or if the output, the trace or a dump cannot be written; 2 for an invalid
// option or TUTTI_* variable. `top` without --once, and `metrics` with --interval-ms, end only if their output cannot
// be written, or a named file can no longer be read.
void add_top_command(CLI::App& app, int& exit_status);
void add_doctor_command(CLI::App& app, int& exit_status);
void add_metrics_command(CLI::App& app, int& exit_status);

}  // namespace tutti::tool
