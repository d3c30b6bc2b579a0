// The parser of the rules. An error in a rule is reported with the number and the text of the rule.
#include "model/overrides.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/collective_table.h"
#include "base/config.h"
#include "model/tuner.h"

namespace tutti {
namespace {

// Parses a number with an optional suffix K, M, G or T, or KiB, MiB, GiB or TiB; the first letter may be small. 1K
// is 1024. Returns nothing if the text is not such a number, or if the number does not fit into 64 bits.
std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (rest.empty()) return number;
  const std::size_t power = std::string_view("KMGT").find(rest[0] >= 'a' ? static_cast<char>(rest[0] - 32) : rest[0]);
  if ((rest.size() != 1 && rest.substr(1) != "iB") || power == std::string_view::npos) return std::nullopt;
  const auto shift = static_cast<unsigned>(10 * (power + 1));
  if (number > UINT64_MAX >> shift) return std::nullopt;
  return number << shift;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Returns "did you mean ..." with the known word that is most similar, or a list of all known words if none is
// similar.
std::string suggest(std::string_view word, const std::vector<std::string_view>& known) {
  const std::string_view nearest = nearest_name(word, known);
  return nearest.empty() ? fmt::format("there are {}", fmt::join(known, ", "))
                         : fmt::format("did you mean {}?", nearest);
}

// Parses the text after "ranks" of a condition, such as "<=8", and narrows the range of the rule. Returns an error
// message if the text is invalid, otherwise nothing. read_range() and read_chunk() do the same for other parts of a
// rule.
std::optional<std::string> read_ranks(std::string_view text, Override& rule) {
  const bool at_most = text.starts_with("<=");
  const bool at_least = text.starts_with(">=");
  if (!at_most && !at_least && !text.starts_with("=")) return "give ranks<=N, ranks>=N or ranks=N";
  const auto number = parse_bytes(trim(text.substr(at_most || at_least ? 2 : 1)));
  if (!number || *number > UINT32_MAX) return "the number of ranks cannot be read";
  const auto ranks = static_cast<std::uint32_t>(*number);
  if (!at_most) rule.min_ranks = std::max(rule.min_ranks, ranks);
  if (!at_least) rule.max_ranks = std::min(rule.max_ranks, ranks);
  return std::nullopt;
}

std::optional<std::string> read_range(std::string_view text, Override& rule) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos)
    return fmt::format("\"{}\" is no range of bytes such as 4K..64K and no ranks<=N", text);
  const std::string_view low = trim(text.substr(0, dots));
  const std::string_view high = trim(text.substr(dots + 2));
  const auto least = low.empty() ? std::optional<std::uint64_t>(0) : parse_bytes(low);
  const auto most = high.empty() ? std::optional<std::uint64_t>(UINT64_MAX) : parse_bytes(high);
  if (!least || !most) return fmt::format("\"{}\" is no number of bytes", !least ? low : high);
  rule.min_bytes = std::max(rule.min_bytes, *least);
  rule.max_bytes = std::min(rule.max_bytes, *most);
  return std::nullopt;
}

std::optional<std::string> read_chunk(std::string_view text, std::uint64_t slot_bytes, Override& rule) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes == 0 || *bytes % kLeastChunkBytes != 0)
    return fmt::format("\"{}\" is no length of chunks: give a multiple of 4K, such as 32K", text);
  if (*bytes > slot_bytes)
    return fmt::format("chunks of {} bytes are longer than a slot, {}: see TUTTI_SLOT_BYTES", *bytes, slot_bytes);
  rule.chunk_bytes = static_cast<std::uint32_t>(*bytes);
  return std::nullopt;
}

// Parses one rule into `rule`. The algorithm follows the last "=", because a condition such as "ranks<=8" also contains
// one. Returns an error message if the rule is invalid, otherwise nothing.
std::optional<std::string> read_rule(std::string_view text, std::uint64_t slot_bytes, Override& rule) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string_view::npos) return "has no \"= algorithm\" at its end";
  const std::string_view right = text.substr(equals + 1);
  const std::string_view name = trim(right.substr(0, right.find('/')));
  std::string_view left = text.substr(0, equals);
  const std::string_view kind_name = trim(left.substr(0, left.find(':')));
  left.remove_prefix(std::min(left.size(), left.find(':')));
  const auto kind = parse_collective(kind_name);
  if (!kind || !has_plan(*kind)) {
    std::vector<std::string_view> known;
    for (const CollectiveKind one : all_collectives()) known.push_back(to_string(one));
    return fmt::format("\"{}\" is no collective; {}", kind_name, suggest(kind_name, known));
  }
  rule.kind = *kind;
  const std::vector<Algorithm> algorithms = algorithms_of(*kind);
  const auto algorithm = parse_algorithm(name);
  if (!algorithm || std::find(algorithms.begin(), algorithms.end(), *algorithm) == algorithms.end()) {
    std::vector<std::string_view> known;
    for (const Algorithm one : algorithms) known.push_back(to_string(one));
    return fmt::format("\"{}\" is no algorithm of {}; {}", name, kind_name, suggest(name, known));
  }
  rule.algorithm = *algorithm;
  if (const std::size_t slash = right.find('/'); slash != std::string_view::npos) {
    if (auto fault = read_chunk(trim(right.substr(slash + 1)), slot_bytes, rule)) return fault;
  }
  while (left.starts_with(':')) {
    left.remove_prefix(1);
    const std::string_view condition = trim(left.substr(0, left.find(':')));
    left.remove_prefix(std::min(left.size(), left.find(':')));
    const bool ranks = condition.starts_with("ranks");
    auto fault = ranks ? read_ranks(trim(condition.substr(5)), rule) : read_range(condition, rule);
    if (fault) return fault;
  }
  if (rule.min_bytes > rule.max_bytes || rule.min_ranks > rule.max_ranks) return "its conditions exclude every call";
  return std::nullopt;
}

bool same_calls(const Override& a, const Override& b) {
  return a.kind == b.kind && a.min_bytes == b.min_bytes && a.max_bytes == b.max_bytes && a.min_ranks == b.min_ranks &&
         a.max_ranks == b.max_ranks;
}

}  // namespace

Result<std::vector<Override>> parse_overrides(std::string_view text, std::uint64_t slot_bytes) {
  const auto wrong = [](std::string message) {
    return Error{ErrorCode::kConfig, ErrorScope::kCall, -1, "TUTTI_TUNE: " + std::move(message)};
  };
  if (text.size() > kMostOverrideBytes) {
    return wrong(fmt::format("{} characters are more than {}", text.size(), kMostOverrideBytes));
  }
  std::vector<Override> rules;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view one = trim(text.substr(0, text.find(';')));
    text.remove_prefix(std::min(text.size(), text.find(';')));
    text.remove_prefix(std::min<std::size_t>(text.size(), 1));
    if (one.empty()) continue;
    if (rules.size() == kMostOverrides) return wrong(fmt::format("more than {} rules", kMostOverrides));
    Override rule;
    if (const auto fault = read_rule(one, slot_bytes, rule))
      return wrong(fmt::format("rule {} \"{}\": {}", number, one, *fault));
    for (const Override& earlier : rules) {
      if (!same_calls(earlier, rule) || earlier == rule) continue;
      return wrong(fmt::format("rule {} \"{}\" is for the same calls as an earlier one that takes {}: leave one out",
                               number, one, to_string(earlier.algorithm)));
    }
    rules.push_back(rule);
  }
  return rules;
}

}  // namespace tutti
