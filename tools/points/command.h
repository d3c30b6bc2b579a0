// `tutti points`: predictions against published measurements.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::tool {

void add_points_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
