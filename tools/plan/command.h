// The command `tutti plan`, which prints, proves, draws and exports the plan of a collective. The file also
// declares helpers that other commands share with it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::tool {

// Adds the command to `app`. When the command line selects this command, app.parse() runs it and stores its exit
// code in `exit_code`, which must outlive the parsing.
void add_plan_command(CLI::App& app, int& exit_code);

// A validator for an option that names an algorithm. Returns an empty string if some collective has a plan by the
// algorithm `name`, otherwise an error message with the names of all such algorithms.
std::string check_algorithm(const std::string& name);

// A text for people: the forms of execution that a complete proof of a plan covers (staged, which means through slots,
// or through windows, in place or out of place). `windows_in_place` is PlanShape::windows_in_place.
std::string_view proved_modes(bool windows_in_place);

// The names of the collectives for which some algorithm has a plan.
std::vector<std::string> planned_collectives();

// Returns the machine of each rank, indexed by rank, if the ranks are distributed over `machines` machines:
// consecutive ranks on each machine, in groups of equal size as far as possible. Returns an empty vector for one
// machine or 0, as Collective::nodes requires.
std::vector<std::uint32_t> nodes_of_equal_size(std::uint32_t ranks, std::uint32_t machines);

}  // namespace tutti::tool
