// Draws a plan as an SVG picture: time runs from left to right, each rank and channel has a row, each step is a
// box, and each message is a line.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::tool {

// Larger plans are refused, because the picture would be unreadable.
inline constexpr std::uint32_t kMaxDrawnRanks = 64;

// Draws one tile of the plan. Every step takes one unit of time and starts as soon as its operands are available.
// Connections hold any number of messages. Errors: kUnsupported for more than kMaxDrawnRanks; kInvalidPlan if the
// plan does not run to its end.
Result<std::string> to_svg(const Plan& plan);

}  // namespace tutti::tool
