// Divides a message into the parts that different queue pairs transfer. A pure function.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

// Returns the offset at which part number `part` of `parts` ends, in bytes. A part begins at the end of the part
// before it, and the last part ends at `bytes`. The lengths are proportional to `weights`, each of which is at least 1,
// or equal if `weights` is empty; each end is then rounded up to a multiple of 64, but not beyond `bytes`. So a part
// can be empty. Requires parts >= 1, part < parts, and weights.size() == 0 or >= parts. `bytes` and the sum of the
// weights must each be below 2^31, so that their product fits into 64 bits.
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
