// The command `tutti sim`, which simulates a collective on a machine that need not exist (docs/sim.md).
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Adds the command to `app`. Stores the result in `exit_code` when the command has run.
void add_sim_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
