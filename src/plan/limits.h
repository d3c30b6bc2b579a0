// Limits on the memory and time that a plan from a user may cost to hold and to verify. The limits are checked
// before the plan is verified, so that the verification of a malicious or faulty plan file cannot exhaust the
// machine's memory. Pure functions.
#pragma once

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Succeeds if the plan is within PlanLimits (tutti/plan.h), and if the estimated memory and time of its
// verification are below the limits in limits.cc. The plan does not have to be valid: every field may have any
// value. Errors: kUnsupported.
Status check_limits(const Plan& plan);

}  // namespace tutti
