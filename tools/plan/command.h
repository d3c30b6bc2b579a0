// The command `tutti plan`, which prints, proves, draws and exports the plan of a collective. Also helpers that other
// commands share with it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::tool {

// Adds the command to `app`. Stores the result in `exit_code` when the command has run.
void add_plan_command(CLI::App& app, int& exit_code);

// A validator for an option that names an algorithm. Returns an empty string if the algorithm has a plan for any
// collective, otherwise the error message.
std::string check_algorithm(const std::string& name);

// Describes the forms of execution that a complete proof covers (staged or through windows, in place or out of place).
// `windows_in_place` as in PlanShape.
std::string_view proved_modes(bool windows_in_place);

// The names of the collectives for which some algorithm has a plan.
std::vector<std::string> planned_collectives();

// The machine of each rank, if the ranks are distributed over `machines` machines in consecutive groups of equal size
// (as far as possible). Empty for one machine.
std::vector<std::uint32_t> nodes_of_equal_size(std::uint32_t ranks, std::uint32_t machines);

}  // namespace tutti::tool
