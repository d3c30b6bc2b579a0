#include "tools/sim/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tools/common/svg_drawing.h"

namespace tutti::tool {
namespace {

constexpr double kLeft = 110, kWidth = 1000, kRow = 18, kTop = 46, kBar = 16;

// The distance between two marks of the time axis: 1, 2, 5 or 10 times a power of ten, so that at most about eight
// of them fit into `span`.
double tick_of(double span) {
  const double rough = span / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

void add_text(SvgDrawing& svg, double x, double y, std::string_view anchor, std::string_view text) {
  svg.text(x, y, text, {.size = 11, .anchor = anchor});
}

// Draws the time lines of the trace. Returns the y coordinate below them, at which the next part of the drawing may
// begin.
double draw_lines(const SimulateResult& result, SvgDrawing& svg) {
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::size_t>
      rows;  // number of the row, indexed by rank and channel
  double end = 0;
  const std::size_t shown = std::min(result.trace.size(), kMostDrawnSteps);
  for (std::size_t i = 0; i < shown; ++i) {
    rows.try_emplace({result.trace[i].rank, result.trace[i].channel}, 0);
    end = std::max(end, result.trace[i].end_us);
  }
  if (rows.empty() || !(end > 0)) return kTop;
  std::size_t next = 0;
  for (auto& [key, row] : rows) row = next++;
  const auto x = [&](double us) { return kLeft + kWidth * us / end; };
  const double bottom = kTop + kRow * static_cast<double>(rows.size());
  for (double us = 0; us <= end; us += tick_of(end)) {
    svg.line(x(us), kTop - 4, x(us), bottom + 4, {.colour = "#dddddd"});
    add_text(svg, x(us), bottom + 18, "middle", fmt::format("{:g} us", us));
  }
  for (const auto& [key, row] : rows) {
    add_text(svg, kLeft - 8, kTop + kRow * static_cast<double>(row) + 13, "end",
             fmt::format("rank {}.{}", key.first, key.second));
  }
  for (std::size_t i = 0; i < shown; ++i) {
    const TracedStep& step = result.trace[i];
    const double y = kTop + kRow * static_cast<double>(rows.at({step.rank, step.channel})) + 1;
    // A thin line shows how long the step waited before it began.
    if (step.begin_us > step.ready_us) {
      svg.line(x(step.ready_us), y + kBar / 2, x(step.begin_us), y + kBar / 2, {.colour = "#c9c9c9"});
    }
    const char* const colour = step.tile % 2 == 0 ? "#3b75af" : "#7aa6d6";
    const std::string title =
        fmt::format("step {}, tile {}: {:.3f} to {:.3f} us", step.step, step.tile, step.begin_us, step.end_us);
    svg.box(x(step.begin_us), y, std::max(0.4, x(step.end_us) - x(step.begin_us)), kBar,
            {.fill = colour, .line = "#ffffff", .line_width = 0.3, .title = title});
  }
  if (shown < result.trace.size()) {
    add_text(svg, kLeft + kWidth, kTop - 8, "end", fmt::format("the first {} of {} steps", shown, result.trace.size()));
  }
  return bottom + 44;
}

double draw_links(const SimulateResult& result, double top, SvgDrawing& svg) {
  if (result.busiest.empty()) return top;
  constexpr double kNames = 320;
  add_text(svg, 8, top, "start", "busiest links, of their capacity over the whole time");
  for (std::size_t i = 0; i < result.busiest.size(); ++i) {
    const LinkLoad& link = result.busiest[i];
    const double y = top + 8 + kRow * static_cast<double>(i);
    add_text(svg, kNames - 8, y + 13, "end", link.name);
    const double width = (kLeft + kWidth - kNames) * std::min(link.utilisation, 1.0);
    svg.box(kNames, y + 1, std::max(0.5, width), kBar, {.fill = "#d98b3a"});
    add_text(svg, kNames + 6, y + 13, "start", fmt::format("{:.1f}%", 100 * link.utilisation));
  }
  return top + 8 + kRow * static_cast<double>(result.busiest.size()) + 12;
}

}  // namespace

std::string to_svg(const SimulateResult& result, const std::string& title) {
  SvgDrawing svg;
  add_text(svg, 8, 18, "start", title);
  const double lines = draw_lines(result, svg);
  const double height = draw_links(result, lines, svg);
  return svg.document(kLeft + kWidth + 30, height);
}

}  // namespace tutti::tool
