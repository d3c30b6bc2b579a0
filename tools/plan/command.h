// `tutti plan`: prints, proves and draws the plan of a collective.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::tool {

// Sets `exit_code` when the command has run.
void add_plan_command(CLI::App& app, int& exit_code);

// For an option that names an algorithm: empty when it is one that has a plan for any collective, else what to say.
std::string check_algorithm(const std::string& name);

// The ways of memory that a whole proof covers, in words; `windows_in_place` as in PlanShape.
std::string_view proved_ways(bool windows_in_place);

// The collectives that some algorithm has a plan for.
std::vector<std::string> planned_collectives();

// The machine of each rank where so many stand side by side, equally many on each as far as that goes; empty for one.
std::vector<std::uint32_t> nodes_of_equal_size(std::uint32_t ranks, std::uint32_t machines);

}  // namespace tutti::tool
