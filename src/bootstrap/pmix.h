// The store of a launcher that uses PMIx (Open MPI's mpirun). It passes one text from rank 0 to all ranks. It uses
// the PMIx library that is installed with the launcher, and loads it when it is needed. It is used only for jobs on
// several machines whose environment does not contain the address of rank 0. Any thread may call it, but only one
// call at a time per process.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "tutti/result.h"

namespace tutti {

// Every rank of the launcher's job must call this. On rank 0 `make` creates the text, and all ranks return it.
// Errors: kUnsupported (the library is missing; the message states an alternative), kTimeout, kSystem.
Result<std::string> share_through_pmix(std::int32_t rank, const std::function<Result<std::string>()>& make,
                                       std::chrono::steady_clock::time_point deadline);

}  // namespace tutti
