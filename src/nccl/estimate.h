// What ncclGroupSimulateEnd() says a group would take.
#pragma once

#include <vector>

#include "nccl/group.h"

namespace tutti::nccl {

// Microseconds: of each communicator the sum of its calls, and of these the longest. A call takes what the tuner
// predicts (Communicator::predicted_us()); where it cannot (transfers, GPUs), rounds and bytes by stated constants.
double estimated_us(const std::vector<GroupCall>& calls);

}  // namespace tutti::nccl
