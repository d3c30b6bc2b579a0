// The time estimate that ncclGroupSimulateEnd() returns for a group.
#pragma once

#include <cstddef>
#include <vector>

#include "nccl/comm.h"
#include "nccl/group.h"

namespace tutti::nccl {

// The time that a group of these calls would take, in microseconds. The times of one communicator's calls are added,
// and the communicator with the largest sum determines the result, because communicators run at the same time. The time
// of a call is the prediction of the cost model (Communicator::predicted_us()). If the model has no prediction, for
// example for sends, for receives, for GPUs and for a single rank, the time is calculated from the number of rounds and
// bytes with the constants in estimate.cc.
double estimated_us(const std::vector<GroupCall>& calls);

// The same for one collective on a communicator with at least 2 ranks.
double estimated_us(const Comm& comm, CollectiveKind kind, std::size_t count, DataType type, Algorithm algorithm);

}  // namespace tutti::nccl
