// RunLog: the log of one training run, as written by `tutti train MODEL --json FILE`: JSON lines, one record per
// line. It is a value: it can be copied, and passed between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tutti/result.h"

namespace tutti::train {

inline constexpr std::size_t kMostLogBytes = std::size_t{256} << 20;
inline constexpr std::uint32_t kMostLogRanks = 1'000'000;
// stands for a number that the log does not have
inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

// The part of a log that the drawings use. If a record lacks a field, or the field is null, a measured value is
// kNoValue and a setting is 0.
struct RunLog {
  struct Step {
    std::uint64_t step = 0;  // counts from 1
    double loss = kNoValue;
    double load_s = kNoValue;     // loading the batch
    double compute_s = kNoValue;  // forward and backward passes, optimizer
    double exposed_s = kNoValue;  // communication that is not hidden by computation
    double step_s = kNoValue;     // the whole step
  };
  struct Epoch {
    std::uint64_t step = 0;           // last step of the epoch
    double test_accuracy = kNoValue;  // 0..1
  };

  std::string name;  // name of the file without folder and extension
  std::string model, strategy, optimizer, precision;
  std::uint64_t parameters = 0;
  std::uint32_t ranks = 1;  // 1..kMostLogRanks
  // Ranks that share one copy of the model, by tensor or pipeline parallelism.
  std::uint64_t tensor = 0, pipeline = 0;
  std::uint64_t batch = 0;  // samples per step
  std::uint64_t threads = 0, seed = 0;
  double lr = kNoValue;

  std::vector<Step> steps;  // in the order of the file
  std::vector<Epoch> epochs;
  double samples_per_s = kNoValue;  // of the whole run; kNoValue if the run did not end
};

// Parses the text of a log; `name` is the file name for messages. Unknown fields and records are ignored. An
// incomplete last line is ignored as well, because the run may have been killed while it wrote the line. Errors:
// kInvalidArgument, with the file and the line in the message.
Result<RunLog> parse_log(const std::string& name, const std::string& text);

}  // namespace tutti::train
