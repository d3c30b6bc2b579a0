// machine_ranks(): how the ranks of a communicator are distributed over machines, for front ends of the library. Any
// thread may call it.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/communicator.h"

namespace tutti::detail {

// The number of ranks on each machine; Communicator::nodes() elements, each at least 1.
std::vector<std::int32_t> machine_ranks(const Communicator& communicator);

}  // namespace tutti::detail
