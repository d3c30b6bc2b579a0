// The store of a launcher that speaks PMIx (Open MPI's mpirun), through the PMIx library that is installed with it,
// opened when it is needed: one text from rank 0 to all. Used only for jobs on several machines, where the environment
// names no place to meet. Any thread; one call at a time in a process.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "tutti/result.h"

namespace tutti {

// Every rank of the launcher's job calls this; rank 0's `make` gives the text, all return it. Errors: kUnsupported (no
// library: what to do without is said), kTimeout, kSystem.
Result<std::string> share_through_pmix(std::int32_t rank, const std::function<Result<std::string>()>& make,
                                       std::chrono::steady_clock::time_point deadline);

}  // namespace tutti
