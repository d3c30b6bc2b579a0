// The store of a launcher that uses PMIx (Open MPI's mpirun). share_through_pmix() passes one text from rank 0 to all
// ranks through that store. Its first call loads the PMIx library, which is normally installed with the launcher. The
// function is used for jobs of Open MPI that are not known to run on one machine, if neither the options nor the
// TUTTI_* variables contain a root or a unique id. Any thread may call it. Calls of several threads run one after
// another.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "tutti/result.h"

namespace tutti {

// Every rank of the launcher's job must call this function, and `rank` must be its rank in that job. On rank 0, `make`
// is called to create the text; the other ranks ignore `make`. On success all ranks return that text. Errors: that of
// `make` on rank 0, and then no_unique_id() on the others; kUnsupported (the library is missing or lacks a function;
// the message states an alternative), kTimeout, kSystem.
Result<std::string> share_through_pmix(std::int32_t rank, const std::function<Result<std::string>()>& make,
                                       std::chrono::steady_clock::time_point deadline);

}  // namespace tutti
