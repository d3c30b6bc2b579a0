#include "train/plot/parts.h"

#include <fmt/format.h>

#include <array>

namespace tutti::train {
namespace {

// The facts of a run for its label, in the same order for each run. A fact that is unknown or has its default is "".
std::vector<std::string> facts_of(const RunLog& log) {
  const auto from = [](std::uint64_t least, std::string_view name, std::uint64_t number) {
    return number < least ? std::string() : fmt::format("{} {}", name, number);
  };
  return {
      log.model,
      log.strategy,
      counted(log.ranks, "rank"),
      from(2, "tensor", log.tensor),
      from(2, "pipeline", log.pipeline),
      from(1, "batch", log.batch),
      log.precision,
      log.optimizer,
      std::isnan(log.lr) ? "" : fmt::format("lr {:g}", log.lr),
      log.threads == 0 ? "" : counted(log.threads, "thread"),
      fmt::format("seed {}", log.seed),
      log.parameters == 0 ? "" : fmt::format("{} parameters", short_number(static_cast<double>(log.parameters), 3))};
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    if (!word.empty()) text += fmt::format("{}{}", text.empty() ? "" : between, word);
  }
  return text;
}

// The distance between ticks: 1, 2 or 5 times a power of ten, so that at most `count` ticks fit into `span`.
double tick_of(double span, double count) {
  const double rough = span / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

constexpr double kTicks = 6;
constexpr double kSlack = 1e-9;  // in ticks; tolerates rounding errors, for example that 0.3 is not exactly 3 * 0.1

void add_ticks(Axis& axis, double tick) {
  for (double i = std::ceil(axis.low / tick - kSlack); i * tick <= axis.high + kSlack * tick; ++i) {
    axis.ticks.push_back(std::clamp(i * tick, axis.low, axis.high) + 0.0);  //
  }
}

// A logarithmic axis, with ends that are 1, 2 or 5 times a power of ten. Precondition: extent.low > 0.
Axis log_axis(Extent extent) {
  constexpr double kMostWide = 1e12;
  extent.low = std::max(extent.low, extent.high / kMostWide);
  std::vector<double> marks;
  const int first = static_cast<int>(std::floor(std::log10(extent.low)));
  const int last = static_cast<int>(std::ceil(std::log10(extent.high)));
  for (int power = first; power <= last; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) marks.push_back(factor * std::pow(10, power));
  }
  Axis axis{.low = marks.front(), .high = marks.back(), .ticks = {}, .logarithmic = true};
  for (const double mark : marks) {
    if (mark <= extent.low) axis.low = mark;
    if (mark >= extent.high) axis.high = std::min(axis.high, mark);
  }
  const int every = 1 + (last - first) / 8;  // powers of ten between ticks
  for (int power = first; power <= last; power += every) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double mark = factor * std::pow(10, power);
      if ((factor == 1 || last - first <= 3) && mark >= axis.low && mark <= axis.high) axis.ticks.push_back(mark);
    }
  }
  return axis;
}

std::vector<LossPoint> points_of(const std::vector<RunLog::Step>& steps) {
  std::vector<LossPoint> points;
  const std::size_t count = std::min(steps.size(), kMostLossPoints);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = steps.size() * i / count, end = steps.size() * (i + 1) / count;
    Extent extent;
    double sum = 0, numbers = 0, step = 0;
    for (std::size_t k = begin; k < end; ++k) {
      step += static_cast<double>(steps[k].step);
      if (std::isnan(steps[k].loss)) continue;
      extent.add(steps[k].loss);
      sum += steps[k].loss;
      ++numbers;
    }
    LossPoint point{.step = step / static_cast<double>(end - begin)};
    if (numbers > 0) point = {.step = point.step, .low = extent.low, .high = extent.high, .mean = sum / numbers};
    points.push_back(point);
  }
  return points;
}

// Replaces each point by the mean of a window around it. The window is narrower near the ends, so that the first and
// the last point do not change.
std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points) {
  const std::size_t widest = std::max<std::size_t>(2, points.size() / 40);
  std::vector<LossPoint> result = points;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (std::isnan(points[i].mean)) continue;
    const std::size_t half = std::min({widest, i, points.size() - 1 - i});
    double sum = 0, count = 0;
    for (std::size_t k = i - half; k <= i + half; ++k) {
      if (std::isnan(points[k].mean)) continue;
      sum += points[k].mean;
      ++count;
    }
    result[i].mean = result[i].low = result[i].high = sum / count;
  }
  return result;
}

}  // namespace

RunLabels run_labels_of(const std::vector<RunLog>& logs) {
  RunLabels words;
  std::vector<std::vector<std::string>> facts;
  for (const RunLog& log : logs) facts.push_back(facts_of(log));
  std::vector<std::string> common;
  for (std::size_t i = 0; !facts.empty() && i < facts.front().size(); ++i) {
    const std::string first = facts.front()[i];
    if (!std::all_of(facts.begin(), facts.end(), [&](const auto& its) { return its[i] == first; })) continue;
    common.push_back(first);
    for (std::vector<std::string>& its : facts) its[i].clear();
  }
  words.common = joined(common, ", ");
  for (const std::vector<std::string>& its : facts) words.labels.push_back(joined(its, ", "));
  const auto is_double = [&](std::size_t i) {
    return std::count(words.labels.begin(), words.labels.end(), words.labels[i]) > 1;
  };
  std::vector<bool> unclear(logs.size());
  for (std::size_t i = 0; i < logs.size(); ++i) unclear[i] = words.labels[i].empty() || is_double(i);
  for (std::size_t i = 0; i < logs.size(); ++i) {
    std::string& label = words.labels[i];
    if (unclear[i]) label = label.empty() ? logs[i].name : fmt::format("{}: {}", logs[i].name, label);
  }
  for (std::size_t i = 0; i < logs.size(); ++i) unclear[i] = is_double(i);
  for (std::size_t i = 0; i < logs.size(); ++i) {
    if (unclear[i]) words.labels[i] = fmt::format("{}. {}", i + 1, words.labels[i]);
  }
  return words;
}

std::string short_number(double value, int digits) {
  const double size = std::abs(value);
  const auto of = [&](double unit, std::string_view letter) {
    return fmt::format("{:.{}g}{}", value / unit, digits, letter);
  };
  if (size >= 1e15) return of(1, "");
  if (size >= 1e9) return of(1e9, "G");
  if (size >= 1e6) return of(1e6, "M");
  return size >= 1e4 ? of(1e3, "k") : of(1, "");
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// Eight colours that are easy to distinguish, then darker and lighter versions of them.
std::string colour_of(std::size_t index) {
  constexpr auto kColours =
      std::to_array<std::uint32_t>({0x0072b2, 0xd55e00, 0x009e73, 0xa23b9c, 0xc99700, 0x3fa7dd, 0x7a4a2b, 0x5a5fc7});
  constexpr double kDarker = 0.6, kLighter = 0.45;
  const std::uint32_t base = kColours[index % kColours.size()];
  const std::size_t round = index / kColours.size() % 3;
  std::uint32_t colour = 0;
  for (const unsigned shift : {16U, 8U, 0U}) {
    const double part = (base >> shift) & 0xffU;
    const double mixed = round == 0 ? part : round == 1 ? part * kDarker : part + (255 - part) * kLighter;
    colour |= static_cast<std::uint32_t>(mixed) << shift;
  }
  return fmt::format("#{:06x}", colour);
}

double Axis::at(double value) const {
  const double inside = std::clamp(value, low, high);
  const double part = logarithmic ? (std::log(inside) - std::log(low)) / (std::log(high) - std::log(low))
                                  : (inside - low) / (high - low);
  return from + part * (to - from);
}

Axis round_axis(Extent extent) {
  const double tick = tick_of(extent.high - extent.low, kTicks);
  Axis axis{.low = std::floor(extent.low / tick + kSlack) * tick,
            .high = std::ceil(extent.high / tick - kSlack) * tick,
            .ticks = {}};
  add_ticks(axis, tick);
  return axis;
}

Axis count_axis(double low, double high) {
  Axis axis{.low = low, .high = std::max(high, low + 1), .ticks = {}};
  add_ticks(axis, std::max(1.0, tick_of(axis.high - axis.low, kTicks + 2)));
  return axis;
}

Axis loss_axis(Extent extent) {
  constexpr double kWide = 100, kNarrow = 1e-3;
  if (extent.low > 0 && extent.high > kWide * extent.low) return log_axis(extent);
  const double least = std::max({kNarrow, kNarrow * std::abs(extent.high), kNarrow * std::abs(extent.low)});
  if (extent.high - extent.low < least) extent = {extent.low - least / 2, extent.high + least / 2};
  return round_axis(extent);
}

Axis accuracy_axis(Extent extent) {
  constexpr double kNarrow = 0.05;
  if (extent.high - extent.low < kNarrow) {
    const double low = std::clamp((extent.low + extent.high - kNarrow) / 2, 0.0, 1 - kNarrow);
    extent = {low, low + kNarrow};
  }
  return round_axis(extent);
}

LossLine line_of(const RunLog& log) {
  LossLine line{.raw = points_of(log.steps), .shown = {}, .smooth = log.steps.size() > kManySteps};
  line.shown = line.smooth ? smoothed(line.raw) : line.raw;
  return line;
}

}  // namespace tutti::train
