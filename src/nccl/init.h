// What the functions that make communicators share.
#pragma once

#include "nccl.h"
#include "nccl/comm.h"

namespace tutti::nccl {

// What such a function returns: where making failed at once, there is no handle.
ncclResult_t end_of_making(ncclComm_t* comm, const CommPtr& made, ncclResult_t result);

}  // namespace tutti::nccl
