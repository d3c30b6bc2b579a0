// A cheap check for races, which considers each rank alone. Internal to this folder. Pure functions, called before
// the run of a verification starts (run.h).
#pragma once

#include "plan/plan.h"
#include "plan/verify/verify.h"

namespace tutti {

// True if on some rank more than one channel accesses the same memory. If the result is false and there are no
// windows, the plan has no races, because each channel runs its own steps in program order.
bool channels_share_memory(const Plan& plan, const VerifyOptions& options);

// For plans without windows. True if every two accesses to the same memory of a rank (except two reads) are ordered
// without regard to messages: by program order, by the rank's waits (After), or, in an in-place call, by the data. The
// data gives an order if only one step reads an input chunk: the result that overwrites the chunk contains the value
// that was read, so it cannot be stored before the read. False does not prove a race, because messages may give the
// missing order; only the vector clocks in plan/verify/races.h detect that. A result of true is valid only if the plan
// also has the other properties that verify() proves. The check may still run before these proofs, because verify()
// refuses the plan if one of them fails. Time: proportional to the number of steps and chunks times the number of
// channels of each rank, summed over the ranks. Memory: proportional to the same product of one rank, because the ranks
// are checked one after the other.
bool own_order_suffices(const Plan& plan, const VerifyOptions& options);

}  // namespace tutti
