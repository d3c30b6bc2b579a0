// Log: writes the records of a run as JSON lines to a file (docs/training.md describes the fields), and progress
// messages for people to stderr. Of the ranks, only rank 0 has a log. If the disk is full, the log ends but the
// training continues, and finish() reports the error.
#pragma once

#include <chrono>
#include <fstream>
#include <string>

#include "train/learner.h"

namespace tutti::train {

struct RunFacts {
  std::int64_t parameters = 0;  // number of parameters of the whole model
  std::int32_t data_ranks = 1;
  std::string time;  // start of the run, in UTC: "2026-01-31T12:00:00Z"
};

struct RunResult {
  std::int64_t steps = 0;
  double epochs = 0;
  double loss = 0;
  TestReport test;
  double seconds = 0;  // sum of the times of the steps that this process has completed
  double samples_per_s = 0;
  // Largest number of bytes of tensors in host memory, on the rank with the most. Counted from the first step on; in an
  // elastic job, from the start of the process on.
  std::int64_t peak_bytes = 0;
  // Bytes of values, gradients, communication buffers and optimizer state, calculated from their sizes, on the rank
  // with the most.
  std::int64_t state_bytes = 0;
  // Sum of the lengths of the outputs of this rank's collectives and of the tensors that it has sent, in bytes. In an
  // elastic job: since the ranks last changed.
  std::int64_t sent_bytes = 0;
};

class Log {
 public:
  // Opens the file options.json. If that name is empty, no records are written. `append`: continues the file of an
  // earlier run, or of a rank that has failed. Throws Failure if the file cannot be opened.
  Log(const TrainOptions& options, bool append);

  void run(const RunFacts& facts);
  void step(std::int64_t step, double epoch, double lr, const StepReport& report);
  void test(std::int64_t step, double epoch, const TestReport& report);
  void note(const std::string& text);  // prints a line to stderr, not to the file
  void result(const RunResult& result);
  void progress(std::int64_t step, std::int64_t steps, double epoch, const StepReport& report);
  // Closes the file. Throws Failure if some records could not be written.
  void finish();

 private:
  void write(const std::string& line);

  TrainOptions options_;
  std::ofstream file_;
  // the last line on the terminal is the progress bar, which the next line replaces
  bool bar_shown_ = false;
  // When progress was printed last.
  std::chrono::steady_clock::time_point last_progress_{};
  // Number of tenths of the steps that were done at that time; -1: no progress was printed yet.
  std::int64_t last_tenth_ = -1;
};

// The current time in UTC, as in "2026-01-31T12:00:00Z".
std::string utc_time();

}  // namespace tutti::train
