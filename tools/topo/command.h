// The command `tutti topo`, which shows the topology of a machine: this one, one in a file in NCCL's XML format, or a
// ready-made one.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

// Adds the command to `app`. Stores the result in `exit_status` when the command has run: 0 for success, also if there
// is no GPU or no driver; 1 if the machine cannot be examined (for example, the driver or NVML fails), or if a file is
// invalid or cannot be read or written; 2 for an invalid option, or if --write-xml cannot express the machine.
void add_topo_command(CLI::App& app, int& exit_status);

}  // namespace tutti::tool
