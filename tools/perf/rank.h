// One rank's part of `tutti perf`: it runs the sweep over types, operations and sizes, checks the results and measures
// the times.
//
// All ranks call these functions with the same options, each with its own communicator and from one thread.
#pragma once

#include <string>

#include "tools/perf/options.h"
#include "tools/perf/report.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::tool {

// The name of the transports that the ranks use, all ranks together: for example "shm", "tcp" or "mixed". Collective;
// the same result on all ranks.
Result<std::string> agree_on_transport(Communicator& communicator);

// Runs the sweep. `report` must be null on all ranks except rank 0. Returns the number of wrong elements, of all ranks
// together and the same on all ranks; wrong elements are not an error here.
Result<std::uint64_t> run_sweep(Communicator& communicator, const PerfOptions& options, PerfReport* report);

}  // namespace tutti::tool
