// run_sim_task(): simulates one algorithm, or all suitable ones. Used by `tutti sim` and by `tutti tune --explain
// --shape`. Used by one thread.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "model/network.h"
#include "tools/sim/options.h"
#include "tools/sim/report.h"
#include "tutti/result.h"

namespace tutti::tool {

// A callback that is called now and then with the completed part (0 to 1) of the simulation `what`, and with nothing
// when the simulation has ended. It may be empty.
using SimProgress = std::function<void(std::optional<double> part, std::string_view what)>;

// Runs the task. With --model auto, all rows are simulated by the same model if possible. Errors: those of simulate();
// if no algorithm is suitable, the error of the last one.
Result<SimReport> run_sim_task(const SimTask& task, const Network& network, const SimProgress& progress = {});

}  // namespace tutti::tool
