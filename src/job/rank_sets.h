// Encodes sets of ranks as text, so that a set fits in one blob of a set-up round.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti {

// Sets of up to this many ranks always fit, whichever ranks they contain.
inline constexpr std::size_t kMostScatteredRanks = 16'000;

// Encodes the set in the shorter of two forms. The first is a list of runs, for example "0-3,7-7". The second is
// "x" and hexadecimal digits for four ranks each, with the lowest rank in the lowest bit of the first digit. For
// example, every second rank of 1,024 makes 512 runs, which take 4.5 KB. Errors: kUnsupported, for a set of more
// than kMostScatteredRanks ranks with too many runs.
Result<std::string> pack_ranks(const std::vector<bool>& set);
// Accepts any text. A text that has neither of the two forms gives an empty set.
std::vector<bool> unpack_ranks(std::string_view text, std::size_t ranks);

}  // namespace tutti
