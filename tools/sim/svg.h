// Draws a simulated call as SVG: the time lines of its first ranks, and the loads of its busiest links.
#pragma once

#include <string>

#include "model/simulate.h"

namespace tutti::tool {

inline constexpr std::uint32_t kDrawnRanks = 16;
inline constexpr std::size_t kMostDrawnSteps = 20'000;  // later steps are left out, and the drawing says so

// If `result.trace` is empty, only the links are drawn. `title` is printed at the top.
std::string to_svg(const SimulateResult& result, const std::string& title);

}  // namespace tutti::tool
