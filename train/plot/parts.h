// The parts of a drawing of training runs, before anything is drawn: labels of the runs, axes with round numbers, and
// losses reduced to as many points as can be distinguished. Values and functions without side effects, for any
// thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "train/plot/log.h"

namespace tutti::train {

// ---- labels and colours

struct RunLabels {
  std::string common;  // the facts that all runs share
  // For each run the facts that differ, or its name. All labels are different.
  std::vector<std::string> labels;
};
RunLabels run_labels_of(const std::vector<RunLog>& logs);

// For example "250", "12k", "1.5M". `digits`: significant digits.
std::string short_number(double value, int digits = 9);

// For example "1 rank", "2 ranks".
std::string counted(std::uint64_t count, std::string_view noun);

// The colour of run `index`, for example "#0072b2". There are 24 colours, which repeat.
std::string colour_of(std::size_t index);

// ---- axes

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool empty() const { return !(low <= high); }
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

struct Axis {
  double low = 0, high = 1;   // values at both ends
  double from = 0, to = 1;    // their positions in pixels
  std::vector<double> ticks;  // round numbers within low..high
  bool logarithmic = false;

  // The position of a value in pixels. A value outside the axis has the position of the nearest end.
  double at(double value) const;
};

// From one round number to another. Precondition: low < high.
Axis round_axis(Extent extent);
// For counts (steps, ranks): it ends at `high`, even if that is not a round number.
Axis count_axis(double low, double high);
// Logarithmic if the losses differ by a factor of more than 100.
Axis loss_axis(Extent extent);
Axis accuracy_axis(Extent extent);  // for values within 0..1

// ---- losses

// Several consecutive steps, drawn as one point of a line.
struct LossPoint {
  double step = 0;
  double low = kNoValue, high = kNoValue;  // kNoValue: no step has a loss, so the line has a gap
  double mean = kNoValue;
};

struct LossLine {
  std::vector<LossPoint> raw, shown;
  bool smooth = false;  // `shown` is a smoothed copy of `raw`; otherwise both are equal
};

inline constexpr std::size_t kManySteps = 100;       // with more steps than this, lines are smoothed
inline constexpr std::size_t kMostLossPoints = 400;  // points of a line
LossLine line_of(const RunLog& log);

}  // namespace tutti::train
