// What drawings of training runs are made of, before anything is drawn: the runs' labels, round axes, losses thinned to
// as many points as eyes tell apart. Values; no side effects.
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

// ---- words and colours

struct Words {
  std::string common;               // what all runs share
  std::vector<std::string> labels;  // what each has for itself, or its name; no two are the same
};
Words words_of(const std::vector<RunLog>& logs);

// "250", "12k", "1.5M".
std::string short_number(double value, int digits = 9);

// "1 rank", "2 ranks".
std::string counted(std::uint64_t count, std::string_view noun);

// "#0072b2" and the like: of 24, which then come again.
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
  double low = 0, high = 1;   // values at its ends
  double from = 0, to = 1;    // their pixels
  std::vector<double> ticks;  // round numbers within low..high
  bool logarithmic = false;

  // The pixel of a value; the nearest end's, for one that is outside.
  double at(double value) const;
};

Axis round_axis(Extent extent);            // from one round number to another. Precondition: low < high
Axis count_axis(double low, double high);  // of steps, of ranks: it ends where the counting does
Axis loss_axis(Extent extent);             // logarithmic where losses span more than two powers of ten
Axis accuracy_axis(Extent extent);         // within 0..1

// ---- losses

// Some steps one after another, as one point of a line.
struct LossPoint {
  double step = 0;
  double low = kNoValue, high = kNoValue;  // kNoValue: a gap
  double mean = kNoValue;
};

struct LossLine {
  std::vector<LossPoint> raw, shown;
  bool smooth = false;  // then `shown` is another line than `raw`
};

inline constexpr std::size_t kManySteps = 100;       // with more, lines are smoothed
inline constexpr std::size_t kMostLossPoints = 400;  // of a line
LossLine line_of(const RunLog& log);

}  // namespace tutti::train
