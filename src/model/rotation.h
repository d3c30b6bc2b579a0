// Finds the ranks of a plan that run the same program with shifted peers. Pure functions.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// Returns the smallest known P' such that rank r runs the program of rank r mod P', with r - r mod P' added to
// every peer (modulo the number of ranks). P' divides the number of ranks. The programs need to be equal only as
// far as time is concerned: the chunks that a step reads and stores may differ, and operands may be in another
// order, but steps, ports, lanes and waits are equal. The period of each algorithm is hard-coded;
// tests/model/rotation_test.cc compares it with the plans. For other plans the function returns the number of
// ranks.
std::uint32_t rotation_period(const Generator& generator);

}  // namespace tutti
