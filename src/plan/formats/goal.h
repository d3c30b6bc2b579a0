// A plan as GOAL, the text that LogGOPSim, ATLAHS and their kin simulate (T. Hoefler, T. Schneider, A. Lumsdaine,
// "LogGOPSim: simulating large-scale applications in the LogGOPS model", 2010). Pure functions.
//
// Steps are `calc 0`: what a plan adds and copies costs nothing there. An empty message is written as one byte long.
#pragma once

#include <string>

#include "plan/formats/operations.h"

namespace tutti {

// The line before the ranks, and one rank's program.
std::string goal_header(std::uint32_t ranks);
std::string to_goal(std::uint32_t rank, const std::vector<Operation>& operations);

}  // namespace tutti
