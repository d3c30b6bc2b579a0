// Prints plans for people, one line per step.
#pragma once

#include <string>

#include "plan/plan.h"

namespace tutti {

// For example "out[1] = recv(1) + in[1] ; send 3": the operands in their order, then the sends. A lane other than
// 0 follows its peer: "recv(1/2)". A step that completes a value is marked "(complete)".
std::string to_text(const Channel& channel, const Step& step);

// Lines of the form "rank 2 channel 0: 3: ...", with "after channel:step" if the step waits for another channel.
// Channels without steps have no line.
std::string to_text(const RankPlan& plan, std::uint32_t rank);

// The first function prints one line about the shape. The second prints that line, and then the steps of all
// ranks.
std::string to_text(const PlanShape& shape);
std::string to_text(const Plan& plan);

}  // namespace tutti
