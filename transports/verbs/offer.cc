#include "transports/verbs/offer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "transports/verbs/gid.h"

namespace tutti {
namespace {

constexpr std::string_view kHead = "verbs2";  // the number at the end is the version of the format
constexpr std::size_t kFields = 8;
constexpr std::size_t kLongestName = 64;

Error unreadable(const std::string& text) {
  return {ErrorCode::kRefused, ErrorScope::kCommunicator, -1,
          fmt::format("\"{}\" is not a list of RDMA ports", text.substr(0, 64))};
}

Error of_another_version(std::string_view head) {
  return {
      ErrorCode::kRefused, ErrorScope::kCommunicator, -1,
      fmt::format("its offer of RDMA ports has version {}, this rank's {}: use the same build of Tutti on all ranks",
                  head, kHead)};
}

bool is_version(std::string_view head) {
  constexpr std::string_view kName = "verbs";
  return head.size() > kName.size() && head.size() < 12 && head.starts_with(kName) &&
         head.find_first_not_of("0123456789", kName.size()) == std::string_view::npos;
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
  if (!read_number(fields[7], port.rail)) return false;
  if (port.number == 0 || port.mtu < 1 || port.mtu > 5 || fields[6].size() != 2 * port.gid.size()) return false;
  for (std::size_t i = 0; i < port.gid.size(); ++i) {
    if (!read_number(fields[6].substr(2 * i, 2), port.gid[i], 16)) return false;
  }
  return true;
}

}  // namespace

std::string print_offer(const std::vector<VerbsPort>& ports) {
  std::string text(kHead);
  for (std::size_t i = 0; i < std::min(ports.size(), kMaxPorts); ++i) {
    const VerbsPort& port = ports[i];
    text += fmt::format(";{},{},{},{},{},{},", port.device, port.number,
                        port.ethernet ? (port.first_version ? '1' : '2') : 'i', port.mbps, port.mtu, port.lid);
    for (const std::uint8_t byte : port.gid) text += fmt::format("{:02x}", byte);
    text += fmt::format(",{}", port.rail);
  }
  return text;
}

Result<std::vector<VerbsPort>> parse_offer(const std::string& text) {
  std::vector<VerbsPort> ports;
  if (text.empty()) return ports;
  const std::vector<std::string_view> parts = split(text, ';');
  if (parts.front() != kHead && is_version(parts.front())) return of_another_version(parts.front());
  if (parts.front() != kHead || parts.size() > kMaxPorts + 1) return unreadable(text);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (!parse_port(parts[i], ports.emplace_back())) return unreadable(text);
    if (i > 1 && ports[i - 1].rail <= ports[i - 2].rail) return unreadable(text);
  }
  return ports;
}

std::vector<std::pair<std::size_t, std::size_t>> match_rails(const std::vector<VerbsPort>& ours,
                                                             const std::vector<VerbsPort>& theirs) {
  std::vector<std::pair<std::size_t, std::size_t>> rails;
  // The other rank knows only the ports of this rank's offer.
  const std::size_t ours_count = std::min(ours.size(), kMaxPorts);
  for (std::size_t i = 0, j = 0; i < ours_count && j < theirs.size();) {
    if (ours[i].rail != theirs[j].rail) {
      ++(ours[i].rail < theirs[j].rail ? i : j);
      continue;
    }
    const bool version = ours[i].first_version == theirs[j].first_version;
    if (version && same_family(ours[i].gid, ours[i].ethernet, theirs[j].gid, theirs[j].ethernet))
      rails.emplace_back(i, j);
    ++i, ++j;
  }
  return rails;
}

}  // namespace tutti
