// Draws training runs from their logs: how the loss falls, how the speed grows with the number of ranks, and how the
// time of a step is spent. Functions without shared state, for any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "train/plot/log.h"
#include "tutti/result.h"

namespace tutti::train {

inline constexpr std::size_t kMostLogs = 64;  // logs in one drawing

// Draws one SVG image, 900 pixels wide, with a group for each panel that has data, in this order:
//   "loss"     loss against step, with one line for each log. With more than 100 steps the line is smoothed, and the
//              raw line is drawn faintly behind it. The line has a gap if the loss is not a number. Dots are test
//              accuracies, on the right axis
//   "scaling"  samples/s against ranks, with one line for each strategy and a dashed line for ideal scaling. Drawn only
//              if the runs have different numbers of ranks
//   "time"     the mean time of a step in milliseconds, as one stacked bar for each log. The first step is left out,
//              because it warms up
// If there is no data at all, the image contains a message.
std::string draw(const std::vector<RunLog>& logs);

// Reads 1 to kMostLogs logs of at most kMostLogBytes each, and writes their drawing to `output`. On an error `output`
// is not changed. Errors: kInvalidArgument (the message has the file, the line and a remedy); kSystem if a file
// cannot be read or written.
Status plot(const std::vector<std::string>& paths, const std::string& output);

}  // namespace tutti::train
