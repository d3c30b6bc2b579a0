// Limits on the memory and time that a plan from a user may cost to hold and to verify. They are checked before
// the verification, so that a malicious or faulty file cannot exhaust the machine's memory. Pure functions.
#pragma once

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Succeeds if the plan is within PlanLimits (tutti/plan.h) and if its verification stays within the bounds of
// memory and time in limits.cc. Does not assume that any field of the plan is valid. Errors: kUnsupported.
Status check_limits(const Plan& plan);

}  // namespace tutti
