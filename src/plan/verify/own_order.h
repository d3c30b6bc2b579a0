// The cheap half of the search for races: the order that the channels of one rank keep among themselves. Internal to
// this folder. Pure functions, called by the run of a verification before it starts.
#pragma once

#include "plan/plan.h"
#include "plan/verify/verify.h"

namespace tutti {

// True when no memory of any rank is touched by more than one channel: then program order is all the order that is
// needed.
bool channels_share_memory(const Plan& plan, const VerifyOptions& options);

// True when, staged, every two accesses to the same memory of a rank are ordered by what that rank alone does: program
// order, its waits (After), and the one thing that needs no wait: a complete value cannot be stored before this rank's
// input has gone into it. False says nothing: messages may order what is left, which only vector clocks see
// (plan/races.h). Counts on all else that verify() proves, which is why it may be asked first. Time: steps x channels
// of a rank; memory: that of one rank.
bool own_order_suffices(const Plan& plan, const VerifyOptions& options);

}  // namespace tutti
