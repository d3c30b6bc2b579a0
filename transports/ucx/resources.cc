#include "transports/ucx/resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tutti {
namespace {

constexpr std::string_view kSpaces = " \t";

// Returns the first line of `text`, and removes it from `text`.
std::string_view cut_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

// Parses a line such as "lane[0]:  4:rc_verbs/rxe0:1.0 md[3] ...", which contains the transport, the device, and the
// index of its path. Returns an empty value if the line does not have this form.
UcxResource parse_lane(std::string_view line) {
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

std::vector<UcxResource> parse_ucx_resources(std::string_view text) {
  std::vector<UcxResource> resources;
  while (!text.empty()) {
    UcxResource resource = parse_lane(cut_line(text));
    if (resource.transport.empty() || std::find(resources.begin(), resources.end(), resource) != resources.end())
      continue;
    resources.push_back(std::move(resource));
  }
  return resources;
}

std::vector<UcxResource> resources_of(const UcxLibrary& ucx, ucp_ep_h endpoint) {
  return parse_ucx_resources(capture_output([&](std::FILE* file) { ucx.ep_print_info(endpoint, file); }));
}

std::string describe(const std::vector<UcxResource>& resources) {
  std::string text;
  for (const UcxResource& resource : resources) {
    const std::size_t colon = resource.device.rfind(':');
    text += text.empty() ? "" : ", ";
    text += colon == std::string::npos ? fmt::format("{} ({})", resource.device, resource.transport)
                                       : fmt::format("{} port {} ({})", resource.device.substr(0, colon),
                                                     resource.device.substr(colon + 1), resource.transport);
  }
  return text;
}

bool is_nic_write_transport(std::string_view transport) {
  return transport.starts_with("rc_") || transport.starts_with("dc_");
}

// Looks for lines such as "resource 4  :  md 3  dev 2  flags -- rc_verbs/rxe0:1".
bool contains_nic_write_transport(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = cut_line(text);
    const std::size_t slash = line.rfind('/');
    if (line.find("resource") == std::string_view::npos || slash == std::string_view::npos) continue;
    const std::size_t space = line.find_last_of(kSpaces, slash);
    if (space != std::string_view::npos && is_nic_write_transport(line.substr(space + 1))) return true;
  }
  return false;
}

}  // namespace tutti
