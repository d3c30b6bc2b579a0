#include "base/byte_text.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <string_view>

namespace tutti {

std::string text_of_bytes(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (number >= 1024 && unit + 1 < std::size(kUnits)) {
    number /= 1024;
    ++unit;
  }
  return unit > 0 && number < 10 ? fmt::format("{:.1f} {}", number, kUnits[unit])
                                 : fmt::format("{:.0f} {}", number, kUnits[unit]);
}

}  // namespace tutti
