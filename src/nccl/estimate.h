// What ncclGroupSimulateEnd() says a group would take.
#pragma once

#include <vector>

#include "nccl/group.h"

namespace tutti::nccl {

// Microseconds: of each communicator the sum of its calls, and of these the longest. Each call costs rounds and bytes:
// its algorithm's number of rounds, and the bytes that a rank sends, by stated constants; nothing is measured.
double estimated_us(const std::vector<GroupCall>& calls);

}  // namespace tutti::nccl
