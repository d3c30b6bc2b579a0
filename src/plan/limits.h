// What a plan from outside may cost to hold and to prove. Checked before the proof, so that no file can make it take
// the machine's memory. Pure functions.
#pragma once

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Success where the plan keeps PlanLimits (tutti/plan.h) and its proof stays within memory and time that a caller can
// bear. Trusts no field of the plan. Errors: kUnsupported.
Status check_limits(const Plan& plan);

}  // namespace tutti
