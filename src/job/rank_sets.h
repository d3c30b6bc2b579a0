// Sets of ranks as text, which fits in one blob of a set-up round.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti {

// Ranks whose sets always fit, whichever ranks a set has.
inline constexpr std::size_t kMostScatteredRanks = 16'000;

// "0-3,7-7", the runs of ranks that are set, or "x" and hexadecimal digits of four ranks each, the lowest rank in the
// lowest bit of the first digit: whichever is shorter. Every second rank of 1,024 has 512 runs, which take 4.5 KB.
// Errors: kUnsupported, for sets of more than kMostScatteredRanks with too many runs.
Result<std::string> pack_ranks(const std::vector<bool>& set);
// Takes any text; what is none of the two forms has no ranks.
std::vector<bool> unpack_ranks(std::string_view text, std::size_t ranks);

}  // namespace tutti
