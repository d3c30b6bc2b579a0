// The log of one training run, as `tutti train MODEL --json FILE` writes it: JSON lines, one record a line. Values;
// safe to copy and to send between threads.
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
inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();  // what a log has no number for

// What drawings need of a log. Where a record lacks a number, or has null for it, kNoValue stands for a measured one
// and 0 for a setting.
struct RunLog {
  struct Step {
    std::uint64_t step = 0;  // from 1
    double loss = kNoValue;
    double load_s = kNoValue;     // waiting for the batch
    double compute_s = kNoValue;  // forwards, backwards, optimizer
    double exposed_s = kNoValue;  // communication that no computation hides
    double step_s = kNoValue;     // all of the step
  };
  struct Epoch {
    std::uint64_t step = 0;           // the last one of the epoch
    double test_accuracy = kNoValue;  // 0..1
  };

  std::string name;  // of the file, without its folder and its ending
  std::string model, strategy, optimizer, precision;
  std::uint64_t parameters = 0;
  std::uint32_t ranks = 1;                 // 1..kMostLogRanks
  std::uint64_t tensor = 0, pipeline = 0;  // ranks that share one copy of the model, in either way
  std::uint64_t batch = 0;                 // samples of a step
  std::uint64_t threads = 0, seed = 0;
  double lr = kNoValue;

  std::vector<Step> steps;  // in the order of the file
  std::vector<Epoch> epochs;
  double samples_per_s = kNoValue;  // of the whole run, where it came to its end
};

// Reads a log's text; `name` is its file, for messages. Unknown fields and records are passed over, and so is a last
// line that is cut off: a run may have been killed. Errors: kInvalidArgument, which names the file and the line.
Result<RunLog> parse_log(const std::string& name, const std::string& text);

}  // namespace tutti::train
