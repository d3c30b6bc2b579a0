// Encodes sets of ranks as text, so that a set fits in one blob of a set-up round.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti {

// In a job of up to this many ranks, every set of ranks fits in one blob.
inline constexpr std::size_t kMostScatteredRanks = 16'000;

// Encodes the set of the ranks r for which set[r] is true, in the shorter of two forms. The first is a list of runs,
// for example "0-3,7-7". The second is "x" and hexadecimal digits for four ranks each, with the lowest rank in the
// lowest bit of the first digit. For example, every second rank of 1,024 makes 512 runs, which take 4,009 bytes, but
// only 257 bytes in the second form. Errors: kUnsupported if the set fits in a blob in neither form, which is possible
// only with more than kMostScatteredRanks ranks.
Result<std::string> pack_ranks(const std::vector<bool>& set);
// Accepts any text. Parts of the text that have neither of the two forms add no rank to the set.
std::vector<bool> unpack_ranks(std::string_view text, std::size_t ranks);

}  // namespace tutti
