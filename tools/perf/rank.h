// One rank's part of `tutti perf`: runs the sweep over types, operations and sizes, checks the results and measures the
// times.
//
// Both functions are collective: all ranks call them with the same options, each rank with its own Communicator object
// and from one thread.
#pragma once

#include <string>

#include "tools/perf/options.h"
#include "tools/perf/report.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::tool {

// The name of the transports that are used between the ranks of the whole job: for example "shm", "tcp" or "mixed".
// Collective; the same result on all ranks.
Result<std::string> agree_on_transport(Communicator& communicator);

// Runs the sweep. `report` must be null on all ranks except rank 0, and not null there. Returns the sum of
// PerfMeasurement::wrong over all measurements and ranks, the same on all ranks. Wrong elements alone do not make this
// function return an error.
Result<std::uint64_t> run_sweep(Communicator& communicator, const PerfOptions& options, PerfReport* report);

}  // namespace tutti::tool
