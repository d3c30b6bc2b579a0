#include "transports/verbs/device_filter.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <tuple>

#include "base/paths.h"

namespace tutti {
namespace {

bool matches(std::string_view item, std::string_view device, std::uint8_t port) {
  const std::size_t colon = item.find(':');
  if (colon != std::string_view::npos && item.substr(colon + 1) != std::to_string(port)) return false;
  const std::string_view name = item.substr(0, colon);
  return name.ends_with('*') ? device.starts_with(name.substr(0, name.size() - 1)) : device == name;
}

std::vector<std::string_view> split_list(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    items.push_back(list.substr(0, list.find(',')));
    list.remove_prefix(std::min(list.size(), items.back().size() + 1));
  }
  return items;
}

}  // namespace

bool is_port_accepted(std::string_view list, std::string_view device, std::uint8_t port) {
  if (list.empty()) return true;
  const bool others = list.starts_with('^');
  if (others) list.remove_prefix(1);
  const std::vector<std::string_view> items = split_list(list);
  return others == std::none_of(items.begin(), items.end(), [&](auto item) { return matches(item, device, port); });
}

std::vector<std::size_t> assign_rails(std::string_view list, const std::vector<PortName>& ports) {
  std::vector<const PortName*> sorted;
  for (const PortName& port : ports) {
    if (is_port_accepted(list, port.device, port.number)) sorted.push_back(&port);
  }
  std::sort(sorted.begin(), sorted.end(), [](const PortName* a, const PortName* b) {
    return std::tie(a->software, a->device, a->number) < std::tie(b->software, b->device, b->number);
  });
  std::vector<std::size_t> rails(ports.size(), kNoRail);
  std::size_t next = 0;
  // Gives the next rails to the matching ports that have no rail yet. Returns true if there was at least one.
  const auto count = [&](const auto& is_meant) {
    const std::size_t before = next;
    for (const PortName* port : sorted) {
      std::size_t& rail = rails[static_cast<std::size_t>(port - ports.data())];
      if (rail == kNoRail && is_meant(*port)) rail = next++;
    }
    return next > before;
  };
  if (!list.empty() && !list.starts_with('^')) {
    for (const std::string_view item : split_list(list)) {
      if (!count([item](const PortName& port) { return matches(item, port.device, port.number); })) ++next;
    }
  } else {
    count([](const PortName&) { return true; });
  }
  return rails;
}

std::vector<std::uint8_t> listed_ports(const std::string& folder) {
  constexpr std::size_t kMostListed = 255;
  std::vector<std::uint8_t> numbers;
  for (const std::string& name : names_in_folder(folder + "/ports", kMostListed)) {
    std::uint8_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size() && number > 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  if (numbers.empty()) numbers.push_back(1);
  return numbers;
}

}  // namespace tutti
