// One rank's part in `tutti perf`: the sweep over types, operations and sizes, checked and timed.
//
// All ranks call it with the same options, each with its own communicator and from one thread.
#pragma once

#include <string>

#include "tools/perf/options.h"
#include "tools/perf/report.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::tool {

// How the ranks reach each other, all together: "shm", "tcp" or "mixed". Collective; the same on all ranks.
Result<std::string> agree_on_transport(Communicator& communicator);

// `report` is there on rank 0 and nowhere else. Returns the number of wrong elements, of all ranks together and the
// same on all; they are no error here.
Result<std::uint64_t> run_sweep(Communicator& communicator, const PerfOptions& options, PerfReport* report);

}  // namespace tutti::tool
