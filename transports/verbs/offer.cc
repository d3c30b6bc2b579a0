#include "transports/verbs/offer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "transports/verbs/gid.h"

namespace tutti {
namespace {

constexpr std::string_view kHead = "verbs1";
constexpr std::size_t kFields = 7;
constexpr std::size_t kLongestName = 64;

Error unreadable(const std::string& text) {
  return {ErrorCode::kRefused, ErrorScope::kCommunicator, -1,
          fmt::format("\"{}\" is no list of RDMA ports", text.substr(0, 64))};
}

template <typename Number>
bool read_number(std::string_view text, Number& number, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool parse_port(std::string_view text, VerbsPort& port) {
  const std::vector<std::string_view> fields = split(text, ',');
  if (fields.size() != kFields || fields[0].empty() || fields[0].size() > kLongestName) return false;
  port.device = fields[0];
  if (!read_number(fields[1], port.number) || (fields[2] != "i" && fields[2] != "1" && fields[2] != "2")) {
    return false;
  }
  port.ethernet = fields[2] != "i";
  port.first_version = fields[2] == "1";
  if (!read_number(fields[3], port.mbps) || !read_number(fields[4], port.mtu) || !read_number(fields[5], port.lid)) {
    return false;
  }
  if (port.number == 0 || port.mtu < 1 || port.mtu > 5 || fields[6].size() != 2 * port.gid.size()) return false;
  for (std::size_t i = 0; i < port.gid.size(); ++i) {
    if (!read_number(fields[6].substr(2 * i, 2), port.gid[i], 16)) return false;
  }
  return true;
}

}  // namespace

std::string print_offer(const std::vector<VerbsPort>& ports) {
  std::string text(kHead);
  for (std::size_t i = 0; i < std::min(ports.size(), kMostPorts); ++i) {
    const VerbsPort& port = ports[i];
    text += fmt::format(";{},{},{},{},{},{},", port.device, port.number,
                        port.ethernet ? (port.first_version ? '1' : '2') : 'i', port.mbps, port.mtu, port.lid);
    for (const std::uint8_t byte : port.gid) text += fmt::format("{:02x}", byte);
  }
  return text;
}

Result<std::vector<VerbsPort>> parse_offer(const std::string& text) {
  std::vector<VerbsPort> ports;
  if (text.empty()) return ports;
  const std::vector<std::string_view> parts = split(text, ';');
  if (parts.front() != kHead || parts.size() > kMostPorts + 1) return unreadable(text);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (!parse_port(parts[i], ports.emplace_back())) return unreadable(text);
  }
  return ports;
}

std::vector<std::pair<std::size_t, std::size_t>> match_rails(const std::vector<VerbsPort>& ours,
                                                             const std::vector<VerbsPort>& theirs) {
  std::vector<std::pair<std::size_t, std::size_t>> rails;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    const bool version = ours[i].first_version == theirs[i].first_version;
    if (version && same_family(ours[i].gid, ours[i].ethernet, theirs[i].gid, theirs[i].ethernet))
      rails.emplace_back(i, i);
  }
  return rails;
}

}  // namespace tutti
