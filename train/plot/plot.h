// Drawings of training runs, of the logs that they wrote: how the loss fell, how the speed grew with the ranks, where
// the time of a step went. One thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "train/plot/log.h"
#include "tutti/result.h"

namespace tutti::train {

inline constexpr std::size_t kMostLogs = 64;  // in one drawing

// One SVG, 900 pixels wide, with a group for each panel that has data, in this order:
//   "loss"     loss against step, a line for each log (smoothed, the raw one faint behind it, where there are more than
//              100 steps; a gap where the loss is no number), dots for the test accuracies on a right-hand axis
//   "scaling"  samples/s against ranks, a line for each strategy and a dashed one for the ideal; where ranks differ
//   "time"     milliseconds of a mean step, less the first one, which warms up: a stacked bar for each log
// Where there is no data at all, it says so.
std::string draw(const std::vector<RunLog>& logs);

// Reads the logs (at most kMostLogs of at most kMostLogBytes each) and writes their drawing to `output`, which is left
// as it was where there is an error. Errors: kInvalidArgument (which file, which line, what to do); kSystem where a
// file cannot be read or written.
Status plot(const std::vector<std::string>& paths, const std::string& output);

}  // namespace tutti::train
