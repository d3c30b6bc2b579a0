// The command `tutti sim`, which simulates a collective on a machine that need not exist (docs/sim.md).
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Adds the command to `app`. When the command line selects this command, app.parse() runs it and stores its exit
// code in `exit_code`, which must outlive the parsing.
void add_sim_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
