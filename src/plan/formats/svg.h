// A plan as a picture: time from left to right, a row for each rank and channel, a box for each step, a line for each
// message.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// More ranks than this are refused: nobody could read the picture.
inline constexpr std::uint32_t kMaxDrawnRanks = 64;

// One tile of the plan as an SVG document. Every step takes one unit of time and starts as soon as its operands are
// there; connections hold any number of messages. kUnsupported for more than kMaxDrawnRanks, kInvalidPlan for a plan
// that does not end.
Result<std::string> to_svg(const Plan& plan);

}  // namespace tutti
