// `tutti topo`: what a machine is: this one, one in a file of NCCL's, or one by name.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Sets `exit_status` when the command has run: 0 also where there is no GPU and no driver; 1 for a file that is wrong.
void add_topo_command(CLI::App& app, int& exit_status);

}  // namespace tutti::tool
