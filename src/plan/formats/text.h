// Plans for people to read: one line per step.
#pragma once

#include <string>

#include "plan/plan.h"

namespace tutti {

// "out[1] = recv(1) + in[1] ; send 3": operands in their order, then the sends. A lane other than 0 stands behind its
// peer: "recv(1/2)". A step that completes a value is marked "(complete)".
std::string to_text(const Channel& channel, const Step& step);

// Lines "rank 2 channel 0: 3: ...", with "after channel:step" where a step waits. Channels without steps get no line.
std::string to_text(const RankPlan& plan, std::uint32_t rank);

// A line about the shape, then all ranks.
std::string to_text(const PlanShape& shape);
std::string to_text(const Plan& plan);

}  // namespace tutti
