// `tutti plan`: prints, proves and draws the plan of a collective.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tutti::tool {

// Sets `exit_code` when the command has run.
void add_plan_command(CLI::App& app, int& exit_code);

// For an option that names an algorithm: empty when it is one that has a plan, else what to say.
std::string check_algorithm(const std::string& name);

}  // namespace tutti::tool
