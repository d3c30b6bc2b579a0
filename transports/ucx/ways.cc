#include "transports/ucx/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tutti {
namespace {

constexpr std::string_view kSpaces = " \t";

// The next line of `text`, which loses it.
std::string_view cut_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

// "lane[0]:  4:rc_verbs/rxe0:1.0 md[3] ...": transport, device, and the number of its path.
UcxWay parse_lane(std::string_view line) {
  const std::size_t lane = line.find("lane[");
  if (lane == std::string_view::npos) return {};
  line.remove_prefix(lane);
  const std::size_t number = line.find("]:");
  if (number == std::string_view::npos) return {};
  line.remove_prefix(number + 2);
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return {};
  line.remove_prefix(colon + 1);
  line = line.substr(0, line.find_first_of(kSpaces));
  const std::size_t slash = line.find('/');
  const std::size_t path = line.rfind('.');
  if (slash == std::string_view::npos || path == std::string_view::npos || path < slash) return {};
  return {.transport = std::string(line.substr(0, slash)),
          .device = std::string(line.substr(slash + 1, path - slash - 1))};
}

}  // namespace

std::vector<UcxWay> parse_ucx_ways(std::string_view text) {
  std::vector<UcxWay> ways;
  while (!text.empty()) {
    UcxWay way = parse_lane(cut_line(text));
    if (way.transport.empty() || std::find(ways.begin(), ways.end(), way) != ways.end()) continue;
    ways.push_back(std::move(way));
  }
  return ways;
}

std::vector<UcxWay> ways_of(const UcxLibrary& ucx, ucp_ep_h endpoint) {
  return parse_ucx_ways(ucx_words([&](std::FILE* file) { ucx.ep_print_info(endpoint, file); }));
}

std::string describe(const std::vector<UcxWay>& ways) {
  std::string text;
  for (const UcxWay& way : ways) {
    const std::size_t colon = way.device.rfind(':');
    text += text.empty() ? "" : ", ";
    text += colon == std::string::npos ? fmt::format("{} ({})", way.device, way.transport)
                                       : fmt::format("{} port {} ({})", way.device.substr(0, colon),
                                                     way.device.substr(colon + 1), way.transport);
  }
  return text;
}

bool writes_by_card(std::string_view transport) { return transport.starts_with("rc_") || transport.starts_with("dc_"); }

// "resource 4  :  md 3  dev 2  flags -- rc_verbs/rxe0:1"
bool names_card(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = cut_line(text);
    const std::size_t slash = line.rfind('/');
    if (line.find("resource") == std::string_view::npos || slash == std::string_view::npos) continue;
    const std::size_t space = line.find_last_of(kSpaces, slash);
    if (space != std::string_view::npos && writes_by_card(line.substr(space + 1))) return true;
  }
  return false;
}

}  // namespace tutti
