// The canonical form of a plan, and the digest of a canonical plan. Plans that differ only in how they are written down
// (for example in the numbering of their ports) have the same canonical form, and therefore canonical forms with the
// same digest. Used for the plans of users. Pure functions.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// Returns an equivalent plan in which the algorithm is Algorithm::kUser, the ports of each channel are in the
// order in which its steps first use them, unused ports are removed, Channel::lists has the entries of each step
// in the order of the steps, and Channel::after is sorted. canonical(canonical(x)) is equal to canonical(x). The
// plan must be valid (see verify()).
Plan canonical(const Plan& plan);

// Returns a hash of a canonical plan. It covers all fields except the reserved ones and Step::list_begin, which follows
// from the other fields of a canonical plan. Equivalent plans that are not canonical can have different hashes. Never
// returns 0, so that 0 can stand for "no plan".
std::uint32_t digest(const Plan& plan);

}  // namespace tutti
