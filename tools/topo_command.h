// `tutti topo`: what this machine is: processors, GPUs, and how GPUs reach each other.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Sets `exit_status` when the command has run: 0 also where there is no GPU and no driver.
void add_topo_command(CLI::App& app, int& exit_status);

}  // namespace tutti::tool
