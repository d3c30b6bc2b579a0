#include "tools/sim/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace tutti::tool {
namespace {

constexpr double kLeft = 110, kWidth = 1000, kRow = 18, kTop = 46, kBar = 16;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += c;
    }
  }
  return out;
}

// The distance between ticks: 1, 2 or 5 times a power of ten, so that about eight of them fit into `span`.
double tick_of(double span) {
  const double rough = span / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string text_at(double x, double y, std::string_view anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
}

// Draws the time lines. Returns the y coordinate at which the next part may begin.
double draw_lines(const SimulateResult& result, std::string& svg) {
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::size_t> rows;  // row number by (rank, channel)
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
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n", x(us),
                       kTop - 4, bottom + 4);
    svg += text_at(x(us), bottom + 18, "middle", fmt::format("{:g} us", us));
  }
  for (const auto& [key, row] : rows) {
    svg += text_at(kLeft - 8, kTop + kRow * static_cast<double>(row) + 13, "end",
                   fmt::format("rank {}.{}", key.first, key.second));
  }
  for (std::size_t i = 0; i < shown; ++i) {
    const TracedStep& step = result.trace[i];
    const double y = kTop + kRow * static_cast<double>(rows.at({step.rank, step.channel})) + 1;
    if (step.begin_us > step.ready_us) {  // the time that the step waited
      svg += fmt::format("<line x1=\"{:.2f}\" y1=\"{:.1f}\" x2=\"{:.2f}\" y2=\"{:.1f}\" stroke=\"#c9c9c9\"/>\n",
                         x(step.ready_us), y + kBar / 2, x(step.begin_us), y + kBar / 2);
    }
    const char* const colour = step.tile % 2 == 0 ? "#3b75af" : "#7aa6d6";
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\" "
        "stroke-width=\"0.3\">"
        "<title>step {}, tile {}: {:.3f} to {:.3f} us</title></rect>\n",
        x(step.begin_us), y, std::max(0.4, x(step.end_us) - x(step.begin_us)), kBar, colour, step.step, step.tile,
        step.begin_us, step.end_us);
  }
  if (shown < result.trace.size()) {
    svg +=
        text_at(kLeft + kWidth, kTop - 8, "end", fmt::format("the first {} of {} steps", shown, result.trace.size()));
  }
  return bottom + 44;
}

double draw_links(const SimulateResult& result, double top, std::string& svg) {
  if (result.busiest.empty()) return top;
  constexpr double kNames = 320;
  svg += text_at(8, top, "start", "busiest links, of their capacity over the whole time");
  for (std::size_t i = 0; i < result.busiest.size(); ++i) {
    const LinkLoad& link = result.busiest[i];
    const double y = top + 8 + kRow * static_cast<double>(i);
    svg += text_at(kNames - 8, y + 13, "end", link.name);
    const double width = (kLeft + kWidth - kNames) * std::min(link.utilisation, 1.0);
    svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#d98b3a\"/>\n", kNames, y + 1,
                       std::max(0.5, width), kBar);
    svg += text_at(kNames + 6, y + 13, "start", fmt::format("{:.1f}%", 100 * link.utilisation));
  }
  return top + 8 + kRow * static_cast<double>(result.busiest.size()) + 12;
}

}  // namespace

std::string to_svg(const SimulateResult& result, const std::string& title) {
  std::string body = text_at(8, 18, "start", title);
  const double lines = draw_lines(result, body);
  const double height = draw_links(result, lines, body);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" viewBox=\"0 0 {0} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{2}</svg>\n",
      kLeft + kWidth + 30, height, body);
}

}  // namespace tutti::tool
