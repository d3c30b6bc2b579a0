// Finds out which ranks of a plan run the same program with shifted peers. Pure functions.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// Returns the smallest known P' with this property: rank r runs the program of rank r mod P', with r - r mod P' added
// to every peer (modulo the number of ranks). For example, P' is 1 for a ring. P' divides the number of ranks. The two
// programs need to be equal only as far as their time is concerned: the chunks that a step reads and stores may differ,
// and operands may be in another order, but the steps, ports, lanes and waits are equal. The P' of each algorithm is
// hard-coded; tests/model/rotation_test.cc compares it with the plans. The result is the number of ranks, which always
// has the property, for collectives with a root, for algorithms without a known P', and for kHierarchical if the
// machines have different numbers of ranks, if the ranks of a machine are not consecutive, or if the number of the
// machine decreases from one rank to the next.
std::uint32_t rotation_period(const Generator& generator);

}  // namespace tutti
