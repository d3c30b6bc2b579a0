#include "job/rank_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "bootstrap/bootstrap.h"

namespace tutti {
namespace {

constexpr std::size_t kRanksPerDigit = 4;
constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::size_t kMostBytes = Bootstrap::kMaxBlobBytes - 1;  // gather_or_fail() adds one character in front
static_assert(kMostScatteredRanks / kRanksPerDigit < kMostBytes);

// The decimal number that is the whole text; nothing if the text is not one.
std::optional<std::size_t> number_of(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string pack_runs(const std::vector<bool>& set) {
  std::string text;
  for (std::size_t first = 0; first < set.size(); ++first) {
    if (!set[first]) continue;
    std::size_t last = first;
    while (last + 1 < set.size() && set[last + 1]) ++last;
    text += fmt::format("{}{}-{}", text.empty() ? "" : ",", first, last);
    first = last;
  }
  return text;
}

std::string pack_digits(const std::vector<bool>& set) {
  std::string text = "x";
  for (std::size_t first = 0; first < set.size(); first += kRanksPerDigit) {
    std::size_t digit = 0;
    for (std::size_t i = 0; i < kRanksPerDigit && first + i < set.size(); ++i) {
      digit |= std::size_t{set[first + i]} << i;
    }
    text += kHexDigits[digit];
  }
  return text;
}

}  // namespace

Result<std::string> pack_ranks(const std::vector<bool>& set) {
  std::string runs = pack_runs(set);
  const std::size_t digits = 1 + (set.size() + kRanksPerDigit - 1) / kRanksPerDigit;
  if (runs.size() <= digits && runs.size() <= kMostBytes) return runs;
  if (digits <= kMostBytes) return pack_digits(set);
  return Error{ErrorCode::kUnsupported, ErrorScope::kCommunicator, -1,
               fmt::format("the ranks of one machine are scattered over {} ranks of the job: that works for at most {} "
                           "ranks; give ranks of one machine consecutive numbers",
                           set.size(), kMostScatteredRanks)};
}

std::vector<bool> unpack_ranks(std::string_view text, std::size_t ranks) {
  std::vector<bool> set(ranks, false);
  if (text.starts_with('x')) {
    for (std::size_t rank = 0; rank < ranks && 1 + rank / kRanksPerDigit < text.size(); ++rank) {
      const std::size_t digit = kHexDigits.find(text[1 + rank / kRanksPerDigit]);
      set[rank] = digit != std::string_view::npos && (digit >> rank % kRanksPerDigit & 1) != 0;
    }
    return set;
  }
  while (!text.empty()) {
    const std::string_view run = text.substr(0, text.find(','));
    text.remove_prefix(std::min(run.size() + 1, text.size()));
    const std::size_t dash = run.find('-');
    if (dash == std::string_view::npos) continue;
    const auto first = number_of(run.substr(0, dash));
    const auto last = number_of(run.substr(dash + 1));
    if (!first || !last) continue;
    for (std::size_t r = *first; r <= *last && r < ranks; ++r) set[r] = true;
  }
  return set;
}

}  // namespace tutti
