// Exports a plan as GOAL, the text format that LogGOPSim, ATLAHS and similar simulators read (T. Hoefler, T.
// Schneider, A. Lumsdaine, "LogGOPSim: simulating large-scale applications in the LogGOPS model", 2010). Pure
// functions.
//
// A step is written as `calc 0`, so the plan's additions and copies take no time in the simulation. A message
// without bytes is written with a length of one byte, because receivers wait for it, too.
#pragma once

#include <string>

#include "plan/formats/operations.h"

namespace tutti {

// goal_header() returns the first line of a GOAL file. to_goal() returns the lines that follow for one rank;
// `operations` is CallOperations::of_rank(rank).
std::string goal_header(std::uint32_t ranks);
std::string to_goal(std::uint32_t rank, const std::vector<Operation>& operations);

}  // namespace tutti
