// Runs what a `tutti sim` task asks for: one algorithm, or all that fit. `tutti tune --explain --shape` asks the same.
// One thread.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "model/network.h"
#include "tools/sim/options.h"
#include "tools/sim/report.h"
#include "tutti/result.h"

namespace tutti::tool {

// Called now and then with the part that is done of what; with nothing where it is done. May be empty.
using SimProgress = std::function<void(std::optional<double> part, std::string_view what)>;

// Rows are told by one model where --model auto leaves it open. Errors: simulate()'s; where nothing fits, the last
// algorithm's.
Result<SimReport> run_sim_task(const SimTask& task, const Network& network, const SimProgress& progress = {});

}  // namespace tutti::tool
