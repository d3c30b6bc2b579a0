// The functions that init.cc and derive.cc share: both define exported functions that create communicators.
#pragma once

#include "nccl.h"
#include "nccl/comm.h"

namespace tutti::nccl {

// The last step of a function that creates the communicator `made` by a job. `result` is the result of run_job() for
// this job. If `result` is an error, removes the Comm from the table and sets *comm to null. Returns `result`.
ncclResult_t finish_creation(ncclComm_t* comm, const CommPtr& made, ncclResult_t result);

// Turns encryption on in `options` if ncclSetEncryption() had requested it when the settings were made.
void encrypt(const Settings& settings, CommunicatorOptions& options);

// Creates a unique id, and starts the rendezvous server at which the ranks of this id meet. Errors: those of
// detail::create_unique_id() (bootstrap/unique_id_parts.h).
ncclResult_t make_id(const Settings& settings, ncclUniqueId* id);

}  // namespace tutti::nccl
