// A cheap search for races, which uses only the order among the channels of one rank. Internal to this folder.
// Pure functions, called before the run of a verification starts.
#pragma once

#include "plan/plan.h"
#include "plan/verify/verify.h"

namespace tutti {

// True if on some rank more than one channel accesses the same memory. If it is false, program order is all the
// order that is needed.
bool channels_share_memory(const Plan& plan, const VerifyOptions& options);

// For plans without windows. True if every two accesses to the same memory of a rank are ordered by that rank alone:
// by program order, by its waits (After), or, in place, by the data. The data orders an input chunk that only one step
// reads, because the result that replaces the chunk contains the value that was read. False does not prove a race,
// because messages may give the missing order; only the vector clocks in plan/verify/races.h detect that. The result
// assumes that the other properties hold that verify() proves. It may still be computed first, because verify()
// refuses a plan if one of them does not hold.
// Time: steps x channels of a rank. Memory: that of one rank.
bool own_order_suffices(const Plan& plan, const VerifyOptions& options);

}  // namespace tutti
