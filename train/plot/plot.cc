#include "train/plot/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tools/common/file.h"
#include "tools/common/svg_text.h"
#include "train/plot/parts.h"

namespace tutti::train {
namespace {

using tool::SvgText;

// Lengths in pixels.
constexpr double kWidth = 900;
constexpr double kMargin = 20;
constexpr double kAxisWidth = 52;  // width of the numbers beside a vertical axis
constexpr double kTitleHeight = 26;
constexpr double kTickHeight = 36;  // height of the numbers below a horizontal axis, and of its name
constexpr double kLegendRow = 18;
constexpr double kLetter = 6.4;  // approximate width of a letter in font kSmall
constexpr double kPanelGap = 24;

constexpr std::string_view kInk = "#1f2a30", kPale = "#5d6b73", kGrid = "#e3e8eb", kIdeal = "#8a979e";
constexpr std::string_view kIdealDashes = "5 4";
constexpr tool::SvgFont kHead{.size = 14, .colour = kInk, .bold = true, .anchor = "start"};
constexpr tool::SvgFont kSmall{.size = 12, .colour = kInk, .bold = false, .anchor = "start"};

struct Area {
  double x = 0, y = 0, width = 0;  // where a panel is drawn; the panel determines its height
};

// ---- shared by the panels

void draw_level_axis(const Axis& axis, double top, double bottom, std::string_view name, SvgText& svg) {
  for (const double tick : axis.ticks) {
    svg.line(axis.at(tick), top, axis.at(tick), bottom, kGrid, 1);
    svg.text(axis.at(tick), bottom + 15, short_number(tick), {.size = 11, .colour = kPale});
  }
  svg.line(axis.from, bottom, axis.to, bottom, kPale, 1);
  svg.text((axis.from + axis.to) / 2, bottom + 30, name, {.size = 11, .colour = kPale});
}

void draw_upright_axis(const Axis& axis, double left, double right, SvgText& svg) {
  for (const double tick : axis.ticks) {
    svg.line(left, axis.at(tick), right, axis.at(tick), kGrid, 1);
    svg.text(left - 6, axis.at(tick) + 4, short_number(tick), {.size = 11, .colour = kPale, .anchor = "end"});
  }
  svg.line(left, axis.from, left, axis.to, kPale, 1);
}

// One entry of a legend.
struct LegendEntry {
  std::string label, colour;
  std::string_view dashes;
};

// Draws a legend, in as many columns as the longest label allows. Returns its height.
double draw_legend(const std::vector<LegendEntry>& entries, const Area& area, SvgText& svg) {
  constexpr double kSign = 26;  // the short line before the label
  std::size_t longest = 1;
  for (const LegendEntry& entry : entries) longest = std::max(longest, entry.label.size());
  const double wanted = kSign + kLetter * static_cast<double>(longest) + 14;
  const double columns = std::max(1.0, std::floor(area.width / wanted));
  const double width = area.width / columns;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const double row = std::floor(static_cast<double>(i) / columns);
    const double x = area.x + width * (static_cast<double>(i) - row * columns);
    const double y = area.y + kLegendRow * row;
    svg.line(x, y + 9, x + kSign - 6, y + 9, entries[i].colour, 2.5, entries[i].dashes);
    svg.text(x + kSign, y + 13, tool::shorten(entries[i].label, static_cast<std::size_t>((width - kSign) / kLetter)),
             kSmall);
  }
  return kLegendRow * std::ceil(static_cast<double>(entries.size()) / columns);
}

// ---- loss

// The SVG path of a line of losses. Each point is a vertical stroke from its highest to its lowest loss.
std::string path_of(const std::vector<LossPoint>& points, const Axis& x, const Axis& y) {
  std::string path;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const LossPoint& point = points[i];
    if (std::isnan(point.mean)) continue;
    const bool begins = i == 0 || std::isnan(points[i - 1].mean);
    const bool ends = i + 1 == points.size() || std::isnan(points[i + 1].mean);
    const double at = x.at(point.step);
    path += fmt::format("{}{:.1f} {:.1f} ", begins ? 'M' : 'L', at, y.at(point.high));
    if (point.low < point.high) path += fmt::format("L{:.1f} {:.1f} ", at, y.at(point.low));
    // an isolated point is drawn as a short line
    if (begins && ends) path += fmt::format("L{:.1f} {:.1f} ", at + 2, y.at(point.low));
  }
  return path;
}

std::string loss_label(const RunLog& log, const std::string& label) {
  const auto gaps =
      std::count_if(log.steps.begin(), log.steps.end(), [](const RunLog::Step& step) { return std::isnan(step.loss); });
  if (gaps == 0) return label;
  return fmt::format("{} ({} without a loss)", label, counted(static_cast<std::uint64_t>(gaps), "step"));
}

// Draws the test accuracies as dots, and their axis on the right side.
void draw_accuracies(const std::vector<RunLog>& logs, const Axis& x, const Axis& y, SvgText& svg) {
  svg.line(x.to, y.from, x.to, y.to, kPale, 1);
  for (const double tick : y.ticks) {
    svg.line(x.to, y.at(tick), x.to + 4, y.at(tick), kPale, 1);
    svg.text(x.to + 8, y.at(tick) + 4, fmt::format("{:g}%", 100 * tick),
             {.size = 11, .colour = kPale, .anchor = "start"});
  }
  for (std::size_t i = 0; i < logs.size(); ++i) {
    for (const RunLog::Epoch& epoch : logs[i].epochs) {
      if (std::isnan(epoch.test_accuracy)) continue;
      svg.chip(x.at(static_cast<double>(epoch.step)), y.at(epoch.test_accuracy), 3.5, "", colour_of(i));
    }
  }
}

// The panels. Each function returns the height of its panel. Precondition: panels_of() has found data for it.
double draw_loss(const std::vector<RunLog>& logs, const RunLabels& words, const Area& area, SvgText& svg) {
  constexpr double kHeight = 250;
  Extent steps, losses, accuracies;
  std::vector<LossLine> lines;
  for (const RunLog& log : logs) {
    lines.push_back(line_of(log));
    for (const LossPoint& point : lines.back().shown) {
      steps.add(point.step);
      for (const double loss : {point.low, point.high}) losses.add(loss);
    }
    for (const RunLog::Epoch& epoch : log.epochs) {
      if (std::isnan(epoch.test_accuracy)) continue;
      steps.add(static_cast<double>(epoch.step));
      accuracies.add(epoch.test_accuracy);
    }
  }
  const double top = area.y + kTitleHeight, bottom = top + kHeight;
  const double right = area.x + area.width - (accuracies.empty() ? 0 : kAxisWidth);
  Axis x = count_axis(steps.low > steps.high / 2 ? steps.low : 0, steps.high);
  x.from = area.x + kAxisWidth, x.to = right;
  Axis y = losses.empty() ? Axis{} : loss_axis(losses);
  y.from = bottom, y.to = top;
  svg.text(area.x, area.y + 12,
           losses.empty()  ? "Test accuracy"
           : y.logarithmic ? "Loss (logarithmic)"
                           : "Loss",
           kHead);
  draw_level_axis(x, top, bottom, "step", svg);
  draw_upright_axis(y, x.from, x.to, svg);
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    if (lines[i].smooth) svg.path(path_of(lines[i].raw, x, y), colour_of(i), 1, 0.25);
    entries.push_back({loss_label(logs[i], words.labels[i]), colour_of(i), {}});
  }
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const std::string path = path_of(lines[i].shown, x, y);
    if (!path.empty()) svg.path(path, colour_of(i), 1.8);
  }
  if (!accuracies.empty()) {
    Axis accuracy = accuracy_axis(accuracies);
    accuracy.from = bottom, accuracy.to = top;
    draw_accuracies(logs, x, accuracy, svg);
    svg.text(area.x + area.width, area.y + 12, "dots: test accuracy", {.size = 12, .colour = kPale, .anchor = "end"});
  }
  return kTitleHeight + kHeight + kTickHeight +
         draw_legend(entries, {x.from, bottom + kTickHeight, area.x + area.width - x.from}, svg);
}

// ---- speed

struct Series {
  std::string label, colour;                           // the colour is that of its first log
  std::map<std::uint32_t, std::vector<double>> rates;  // number of ranks -> samples/s of each run
};

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Divides the logs into series, one for each strategy. If the logs have different models or precisions, each of these
// has its own series.
std::vector<Series> series_of(const std::vector<RunLog>& logs) {
  const auto differs = [&](std::string RunLog::*what) {
    return std::any_of(logs.begin(), logs.end(), [&](const RunLog& log) { return log.*what != logs.front().*what; });
  };
  const bool models = differs(&RunLog::model), precisions = differs(&RunLog::precision);
  std::vector<Series> all;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const RunLog& log = logs[i];
    if (!(log.samples_per_s > 0)) continue;
    std::string label = log.strategy.empty() ? "measured" : log.strategy;
    if (models) label += ", " + log.model;
    if (precisions) label += ", " + log.precision;
    auto its = std::find_if(all.begin(), all.end(), [&](const Series& series) { return series.label == label; });
    if (its == all.end()) its = all.insert(all.end(), {.label = label, .colour = colour_of(i), .rates = {}});
    its->rates[log.ranks].push_back(log.samples_per_s);
  }
  return all;
}

// Ideal scaling: every rank is as fast as a rank of the run with the fewest ranks. If several runs have that number
// of ranks, the fastest series counts.
struct Ideal {
  std::uint32_t least_ranks = 0, most_ranks = 0;
  double rate_per_rank = 0;  // samples/s
};

Ideal ideal_of(const std::vector<Series>& all) {
  Ideal ideal;
  for (const Series& series : all) {
    for (const auto& [ranks, rates] : series.rates) {
      const double rate = mean_of(rates) / ranks;
      const bool smaller = ideal.least_ranks == 0 || ranks < ideal.least_ranks;
      if (smaller || (ranks == ideal.least_ranks && rate > ideal.rate_per_rank)) ideal.rate_per_rank = rate;
      if (smaller) ideal.least_ranks = ranks;
      ideal.most_ranks = std::max(ideal.most_ranks, ranks);
    }
  }
  return ideal;
}

double draw_scaling(const std::vector<RunLog>& logs, const Area& area, SvgText& svg) {
  constexpr double kHeight = 220;
  const std::vector<Series> all = series_of(logs);
  const Ideal ideal = ideal_of(all);
  const auto ideal_rate = [&](std::uint32_t ranks) { return ideal.rate_per_rank * ranks; };
  Extent rates{.low = 0, .high = ideal_rate(ideal.most_ranks)};
  for (const Series& series : all) {
    for (const auto& [ranks, its] : series.rates) rates.add(mean_of(its));
  }
  const double top = area.y + kTitleHeight, bottom = top + kHeight;
  Axis x = count_axis(0, ideal.most_ranks);
  x.from = area.x + kAxisWidth, x.to = area.x + area.width - 8;
  Axis y = round_axis(rates);
  y.from = bottom, y.to = top;
  svg.text(area.x, area.y + 12, "Samples per second", kHead);
  draw_level_axis(x, top, bottom, "ranks", svg);
  draw_upright_axis(y, x.from, x.to, svg);
  svg.line(x.at(ideal.least_ranks), y.at(ideal_rate(ideal.least_ranks)), x.at(ideal.most_ranks),
           y.at(ideal_rate(ideal.most_ranks)), kIdeal, 1.5, kIdealDashes);
  std::vector<LegendEntry> entries;
  for (const Series& series : all) {
    std::string path;
    for (const auto& [ranks, its] : series.rates) {
      const double at_x = x.at(ranks), at_y = y.at(mean_of(its));
      path += fmt::format("{}{:.1f} {:.1f} ", path.empty() ? 'M' : 'L', at_x, at_y);
      svg.chip(at_x, at_y, 3.5, "", series.colour);
    }
    if (series.rates.size() > 1) svg.path(path, series.colour, 2);
    entries.push_back({series.label, series.colour, {}});
  }
  entries.push_back(
      {fmt::format("ideal, from {}", counted(ideal.least_ranks, "rank")), std::string(kIdeal), kIdealDashes});
  return kTitleHeight + kHeight + kTickHeight +
         draw_legend(entries, {x.from, bottom + kTickHeight, x.to - x.from}, svg);
}

// ---- time

struct TimePart {
  std::string_view name, colour;
};
constexpr auto kParts = std::to_array<TimePart>(
    {{"load", "#e8b93c"}, {"compute", "#4a5b70"}, {"exposed communication", "#c8264f"}, {"rest", "#c3ccd1"}});

struct MeanStep {
  std::array<double, kParts.size()> parts_ms{};
  double whole_ms = 0;  // sum of parts_ms
};

// The mean of all steps except the first one; nullopt if no other step has times.
std::optional<MeanStep> mean_step_of(const RunLog& log) {
  MeanStep mean;
  double count = 0;
  for (std::size_t i = 1; i < log.steps.size(); ++i) {
    const RunLog::Step& step = log.steps[i];
    const std::array<double, 3> known = {step.load_s, step.compute_s, step.exposed_s};
    double rest = step.step_s;
    if (std::isnan(step.step_s)) continue;
    for (std::size_t part = 0; part < known.size(); ++part) {
      if (std::isnan(known[part])) continue;
      mean.parts_ms[part] += 1e3 * known[part];
      rest -= known[part];
    }
    mean.parts_ms.back() += 1e3 * std::max(rest, 0.0);
    ++count;
  }
  for (double& part : mean.parts_ms) {
    part /= count;
    mean.whole_ms += part;
  }
  if (!(mean.whole_ms > 0)) return std::nullopt;
  return mean;
}

void draw_bar(const MeanStep& mean, const Axis& x, double y, SvgText& svg) {
  constexpr double kThickness = 14;
  double before = 0;
  for (std::size_t part = 0; part < kParts.size(); ++part) {
    const double after = before + mean.parts_ms[part];
    if (mean.parts_ms[part] > 0) svg.line(x.at(before), y, x.at(after), y, kParts[part].colour, kThickness);
    before = after;
  }
  svg.text(x.at(before) + 6, y + 4, fmt::format("{:.3g} ms", mean.whole_ms), kSmall);
}

double draw_time(const std::vector<RunLog>& logs, const RunLabels& words, const Area& area, SvgText& svg) {
  constexpr double kRow = 38, kTotal = 76;  // kTotal: width of the text behind a bar
  std::vector<std::pair<std::size_t, MeanStep>> bars;
  double most_ms = 0;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const auto mean = mean_step_of(logs[i]);
    if (!mean) continue;
    bars.emplace_back(i, *mean);
    most_ms = std::max(most_ms, mean->whole_ms);
  }
  Axis x = round_axis({0, most_ms});
  x.from = area.x, x.to = area.x + area.width - kTotal;
  svg.text(area.x, area.y + 12, "Where the time of a step goes", kHead);
  const double top = area.y + kTitleHeight, bottom = top + kRow * static_cast<double>(bars.size()) + 4;
  draw_level_axis(x, top, bottom, "ms, mean of all steps but the first", svg);
  double y = top;
  for (const auto& [log, mean] : bars) {
    svg.chip(area.x + 5, y + 10, 4, "", colour_of(log));
    const auto room = static_cast<std::size_t>(area.width / kLetter);
    svg.text(area.x + 14, y + 14, tool::shorten(words.labels[log], room), kSmall);
    draw_bar(mean, x, y + 28, svg);
    y += kRow;
  }
  std::vector<LegendEntry> entries;
  for (const TimePart& part : kParts) entries.push_back({std::string(part.name), std::string(part.colour), {}});
  return bottom - area.y + kTickHeight + draw_legend(entries, {area.x, bottom + kTickHeight, area.width}, svg);
}

// ---- the whole drawing

std::string group(std::string_view name, const SvgText& svg) {
  return fmt::format("<g id=\"{}\">\n{}</g>\n", name, svg.body());
}

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

constexpr std::string_view kNoData = "no log has a loss, an accuracy or the times of a second step";

struct Panels {
  bool loss = false, scaling = false, time = false;  // whether there is data to draw in each panel

  bool any() const { return loss || scaling || time; }
};

Panels panels_of(const std::vector<RunLog>& logs) {
  Panels panels;
  for (const RunLog& log : logs) {
    panels.loss |= std::any_of(log.steps.begin(), log.steps.end(),
                               [](const RunLog::Step& step) { return !std::isnan(step.loss); });
    panels.loss |= std::any_of(log.epochs.begin(), log.epochs.end(),
                               [](const RunLog::Epoch& epoch) { return !std::isnan(epoch.test_accuracy); });
    panels.time |= mean_step_of(log).has_value();
  }
  const Ideal ideal = ideal_of(series_of(logs));
  panels.scaling = ideal.least_ranks < ideal.most_ranks;
  return panels;
}

Result<RunLog> read_log(const std::string& path) {
  std::error_code none;
  std::uintmax_t bytes = kMostLogBytes;
  if (std::filesystem::is_regular_file(path, none)) bytes = std::filesystem::file_size(path, none);
  if (none || bytes > kMostLogBytes) bytes = kMostLogBytes;
  const Result<std::string> text = tool::read_file(path, static_cast<std::size_t>(bytes) + 1);
  if (!text) return text.error();
  return parse_log(path, *text);
}

}  // namespace

std::string draw(const std::vector<RunLog>& logs) {
  const RunLabels words = run_labels_of(logs);
  constexpr double kInner = kWidth - 2 * kMargin;
  SvgText head, loss, scaling, time;
  head.text(kMargin, 26, counted(logs.size(), "training run"),
            {.size = 16, .colour = kInk, .bold = true, .anchor = "start"});
  head.text(kMargin, 45, tool::shorten(words.common, static_cast<std::size_t>(kInner / kLetter)),
            {.size = 12, .colour = kPale, .anchor = "start"});
  const Panels panels = panels_of(logs);
  std::string body = head.body();
  double y = 64;
  if (panels.loss) {
    y += draw_loss(logs, words, {kMargin, y, kInner}, loss) + kPanelGap;
    body += group("loss", loss);
  }
  const bool both = panels.scaling && panels.time;  // then they are drawn side by side
  const double width = both ? (kInner - kPanelGap) / 2 : kInner;
  double lower = 0;
  if (panels.scaling) {
    lower = draw_scaling(logs, {kMargin, y, width}, scaling);
    body += group("scaling", scaling);
  }
  if (panels.time) {
    lower = std::max(lower, draw_time(logs, words, {kWidth - kMargin - width, y, width}, time));
    body += group("time", time);
  }
  if (!panels.any()) {
    SvgText none;
    none.text(kMargin, y + 12, kNoData, kSmall);
    body += none.body();
    lower = kPanelGap;
  }
  return tool::svg_document(kWidth, y + lower + (lower > 0 ? kMargin : 0), body);
}

Status plot(const std::vector<std::string>& paths, const std::string& output) {
  if (paths.empty() || paths.size() > kMostLogs) {
    return invalid(fmt::format("there are {} logs to draw: name 1 to {}", paths.size(), kMostLogs));
  }
  std::vector<RunLog> logs;
  for (const std::string& path : paths) {
    std::error_code none;
    if (std::filesystem::equivalent(path, output, none)) {
      return invalid(fmt::format("the drawing would replace the log {}: name another file for it", path));
    }
    Result<RunLog> log = read_log(path);
    if (!log) return log.error();
    logs.push_back(std::move(log).value());
  }
  if (!panels_of(logs).any()) return invalid(fmt::format("{}: let a run do two steps first", kNoData));
  return tool::write_file(output, draw(logs));
}

}  // namespace tutti::train
