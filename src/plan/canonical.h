// Plans that do the same, made the same: what a digest of a plan is taken of. Pure functions.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// The same plan as Algorithm::kUser, with each channel's ports in the order of their first use, unused ports left out,
// lists in the order of the steps, waits sorted. Twice is once. The plan must be one that verifies.
Plan canonical(const Plan& plan);

// Of every field of a canonical plan; never 0.
std::uint32_t digest(const Plan& plan);

}  // namespace tutti
