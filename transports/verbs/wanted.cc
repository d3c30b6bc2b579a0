#include "transports/verbs/wanted.h"

#include <algorithm>
#include <string>

namespace tutti {
namespace {

bool fits(std::string_view word, std::string_view device, std::uint8_t port) {
  const std::size_t colon = word.find(':');
  if (colon != std::string_view::npos && word.substr(colon + 1) != std::to_string(port)) return false;
  const std::string_view name = word.substr(0, colon);
  return name.ends_with('*') ? device.starts_with(name.substr(0, name.size() - 1)) : device == name;
}

}  // namespace

std::size_t place_in(std::string_view list, std::string_view device, std::uint8_t port) {
  std::size_t place = 0;
  for (; !list.empty(); ++place) {
    const std::string_view word = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), word.size() + 1));
    if (fits(word, device, port)) return place;
  }
  return ~std::size_t{0};
}

bool is_wanted(std::string_view list, std::string_view device, std::uint8_t port) {
  if (list.empty()) return true;
  const bool others = list.starts_with('^');
  if (others) list.remove_prefix(1);
  return (place_in(list, device, port) != ~std::size_t{0}) != others;
}

}  // namespace tutti
