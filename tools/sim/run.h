// run_sim_task(): simulates one algorithm, or all algorithms that can execute the collective. Used by `tutti sim`
// and by `tutti tune --explain` with --shape or --xml. Used by one thread.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "algorithms/algorithms.h"
#include "model/network.h"
#include "tools/sim/options.h"
#include "tools/sim/report.h"
#include "tutti/result.h"

namespace tutti::tool {

// A callback that is called now and then with the completed part (0 to 1) of a simulation, and with the name of its
// algorithm in `what`. When the simulation has ended, it is called once without a part. It may be empty.
using SimProgress = std::function<void(std::optional<double> part, std::string_view what)>;

// The form of the plans that the library would use for this task. If the ranks are GPUs of one machine, these carry out
// the call, and GPUs run only plans of the form kOneChunk. Otherwise the host carries out the call, or the part between
// the machines of a long one, and messages_for() returns the form.
Messages messages_of(const SimTask& task);

// Runs the task. With --model auto, all rows are simulated by the same model if possible, so that they can be
// compared. An algorithm for which simulate() or find_generator() returns kUnsupported is left out; if that is
// every algorithm, the error of the last one is returned. Errors: all other errors of simulate() and find_generator();
// those of InSwitch.
Result<SimReport> run_sim_task(const SimTask& task, const Network& network, const SimProgress& progress = {});

}  // namespace tutti::tool
