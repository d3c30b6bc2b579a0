// A simulated call as a picture: the time lines of its first ranks, and the loads of its busiest links.
#pragma once

#include <string>

#include "model/simulate.h"

namespace tutti::tool {

inline constexpr std::uint32_t kDrawnRanks = 16;
inline constexpr std::size_t kMostDrawnSteps = 20'000;  // later ones are left out, and the picture says so

// `result.trace` may be empty: then only the links are drawn. `title` stands above.
std::string to_svg(const SimulateResult& result, const std::string& title);

}  // namespace tutti::tool
