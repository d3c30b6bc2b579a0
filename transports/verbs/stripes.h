// How a message is shared out among the ports that carry parts of it. A pure function.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

// Where part number `part` of `parts` ends, in bytes; it begins where the one before ended, and the last ends at
// `bytes`. By the weights of the parts' ways, each at least 1, or evenly where there are none; at multiples of 64, so a
// part of a slow way may be empty. parts >= 1, part < parts, weights.size() == 0 or >= parts; bytes and the sum of the
// weights below 2^31 each.
inline std::uint64_t stripe_end(std::uint64_t bytes, std::size_t parts, std::span<const std::uint32_t> weights,
                                std::size_t part) {
  constexpr std::uint64_t kUnit = 64;
  if (part + 1 == parts) return bytes;
  std::uint64_t before = part + 1;
  std::uint64_t all = parts;
  if (!weights.empty()) {
    before = all = 0;
    for (std::size_t i = 0; i < parts; ++i) {
      all += weights[i];
      if (i <= part) before += weights[i];
    }
  }
  const std::uint64_t end = (bytes * before / all + kUnit - 1) / kUnit * kUnit;
  return std::min(end, bytes);
}

}  // namespace tutti
