// Draws a plan as an SVG picture: time runs from left to right, each rank has one or more rows, each step is a box,
// and each message is a line from the step that sends to the step that receives. Channels of a rank share a row if
// none of their steps overlap in time.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::tool {

// Plans with more ranks are refused, because the picture would be unreadable.
inline constexpr std::uint32_t kMaxDrawnRanks = 64;

// Draws one tile of the plan. Every step takes one unit of time, and starts as soon as its messages are available, its
// channel is free, and the steps of this tile for which it waits have ended. Connections hold any number of messages.
// Errors: kUnsupported for more than kMaxDrawnRanks; kInvalidPlan if the plan does not run to its end.
Result<std::string> to_svg(const Plan& plan);

}  // namespace tutti::tool
