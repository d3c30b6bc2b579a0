// Shared by the functions that create communicators (init.cc, derive.cc).
#pragma once

#include "nccl.h"
#include "nccl/comm.h"

namespace tutti::nccl {

// The last step of such a function, with the result of its job. If creation failed at once, the Comm is removed from
// the table and the handle becomes null. Returns `result`, also to the open group.
ncclResult_t finish_creation(ncclComm_t* comm, const CommPtr& made, ncclResult_t result);

}  // namespace tutti::nccl
