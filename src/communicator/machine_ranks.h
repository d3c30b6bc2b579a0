// Facts about a communicator for front ends of the library. Any thread may call these functions.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/communicator.h"

namespace tutti::detail {

// The number of ranks on each machine; Communicator::nodes() elements, each at least 1.
std::vector<std::int32_t> machine_ranks(const Communicator& communicator);

// A random number that identifies the communicator: the same on all its ranks, and another one for each communicator.
std::uint64_t communicator_id(const Communicator& communicator);

}  // namespace tutti::detail
