// What a run tells: records as JSON lines into a file (docs/training.md has the fields), and progress for people on
// stderr. Of the one rank that tells. A disk that is full ends the log, not the training: finish() says so.
#pragma once

#include <chrono>
#include <fstream>
#include <string>

#include "train/learner.h"

namespace tutti::train {

struct RunFacts {
  std::int64_t parameters = 0;  // of the whole model
  std::int32_t data_ranks = 1;
  std::string time;  // "2026-01-31T12:00:00Z"
};

struct RunResult {
  std::int64_t steps = 0;
  double epochs = 0;
  double loss = 0;
  TestReport test;
  double seconds = 0;  // of the steps
  double samples_per_s = 0;
  std::int64_t peak_bytes = 0;   // of tensors, on the rank that had most, from the first step on
  std::int64_t state_bytes = 0;  // values, gradients and optimizer's state by arithmetic, of the rank that has most
  std::int64_t sent_bytes = 0;   // that this rank gave to calls
};

class Log {
 public:
  // `path` empty: no records. `append`: goes on with the file of a rank that is gone. Throws Failure: it cannot be
  // opened.
  Log(const TrainOptions& options, bool append);

  void run(const RunFacts& facts);
  void step(std::int64_t step, double epoch, double lr, const StepReport& report);
  void test(std::int64_t step, double epoch, const TestReport& report);
  void note(const std::string& text);  // for people only
  void result(const RunResult& result);
  void progress(std::int64_t step, std::int64_t steps, double epoch, const StepReport& report);
  // Throws Failure where records are missing.
  void finish();

 private:
  void write(const std::string& line);

  TrainOptions options_;
  std::ofstream file_;
  bool bar_stands_ = false;
  std::chrono::steady_clock::time_point told_{};
  std::int64_t tenth_told_ = -1;
};

std::string utc_time();

}  // namespace tutti::train
