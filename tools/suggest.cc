#include "tools/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/config.h"

namespace tutti::tool {

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known, std::string_view list_begins) {
  const std::string_view nearest = nearest_name(word, known);
  const std::string list = fmt::format("{} {}", list_begins, fmt::join(known, ", "));
  return nearest.empty() ? list : fmt::format("did you mean {}? {}", nearest, list);
}

}  // namespace tutti::tool
