// `tutti sim`: simulates a collective on a machine that need not be there. docs/sim.md.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Sets `exit_code` when the command has run.
void add_sim_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
