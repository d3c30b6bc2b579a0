// Which ranks of a plan run the same program, moved along. Pure functions.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// The smallest known P' such that the program of rank r is that of rank r mod P', with every peer shifted by r - r mod
// P' (modulo the ranks): a divisor of the ranks. "The same" as far as time goes: which chunks a step reads and stores
// may differ, and operands may come in another order, but steps, ports, lanes and waits do not. Known for each
// algorithm; tests/model/rotation_test.cc compares with the plans. The number of ranks where nothing is known.
std::uint32_t rotation_period(const Generator& generator);

}  // namespace tutti
