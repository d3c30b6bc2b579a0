// The store of a launcher that uses PMIx (Open MPI's mpirun). share_through_pmix() passes one text from rank 0 to all
// ranks through that store. Its first call loads the PMIx library, which is installed with the launcher. It is used
// only for jobs on several machines, if their environment does not contain the address of rank 0. Any thread may call
// it. Calls of several threads run one after another.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "tutti/result.h"

namespace tutti {

// Every rank of the launcher's job must call this function. On rank 0, `make` is called to create the text; the
// other ranks ignore it. All ranks return that text. Errors: those of `make`, kUnsupported (the library is missing
// or too old; the message states an alternative), kTimeout, kSystem.
Result<std::string> share_through_pmix(std::int32_t rank, const std::function<Result<std::string>()>& make,
                                       std::chrono::steady_clock::time_point deadline);

}  // namespace tutti
