// Draws a simulated call as SVG: the time lines of the traced ranks, and the loads of the busiest links.
#pragma once

#include <string>

#include "model/simulate.h"

namespace tutti::tool {

// For a drawing, `tutti sim` traces the ranks below this number, or all ranks if there are fewer.
inline constexpr std::uint32_t kDrawnRanks = 16;
// Limit on the steps in the time lines. If the trace has more, those that end last are left out, and the drawing
// contains a note about that.
inline constexpr std::size_t kMostDrawnSteps = 20'000;

// Draws `result`. If `result.trace` is empty, only the links are drawn. `title` is printed at the top.
std::string to_svg(const SimulateResult& result, const std::string& title);

}  // namespace tutti::tool
