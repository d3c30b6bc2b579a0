// The canonical form of a plan, and its digest. Plans that differ only in how they are written down have the same
// canonical form, so that they also have the same digest. Pure functions.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// Returns the same plan with Algorithm::kUser, with each channel's ports in the order of their first use, without
// unused ports, with lists in the order of the steps, and with sorted waits. The function is idempotent. The plan
// must be valid (see verify()).
Plan canonical(const Plan& plan);

// A hash of every field of a canonical plan. Never 0, so that 0 can stand for "no plan".
std::uint32_t digest(const Plan& plan);

}  // namespace tutti
