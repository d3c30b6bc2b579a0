#include "nccl/environment/parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <charconv>

#include "base/assert.h"
#include "base/config.h"

namespace tutti::nccl {
namespace {

Error config_error(std::string message) { return {ErrorCode::kConfig, ErrorScope::kCall, -1, std::move(message)}; }

// Removes the part before the first `separator` from `rest`, together with the separator, and returns the part. If
// there is no separator, returns all of `rest`, which then becomes nothing. Returns nothing if `rest` is nothing.
std::optional<std::string_view> take_part(std::optional<std::string_view>& rest, char separator) {
  if (!rest) return std::nullopt;
  const std::size_t at = rest->find(separator);
  const std::string_view part = rest->substr(0, at);
  rest = at == std::string_view::npos ? std::nullopt : std::optional(rest->substr(at + 1));
  return part;
}

std::optional<std::size_t> find_word(std::string_view word, std::span<const std::string_view> words) {
  const auto found =
      std::find_if(words.begin(), words.end(), [&](std::string_view one) { return same_word(one, word); });
  if (found == words.end()) return std::nullopt;
  return static_cast<std::size_t>(found - words.begin());
}

std::string listed(std::span<const std::string_view> words) { return fmt::format("{}", fmt::join(words, ", ")); }

// Parses the words of one entry, such as "ring,tree" or "^nvls". Bit i of the result is set if words[i] may be used.
Result<std::uint32_t> parse_words(std::string_view variable, std::string_view text,
                                  std::span<const std::string_view> words) {
  const std::uint32_t all = (1u << words.size()) - 1;
  const bool excludes = text.starts_with('^');
  std::optional<std::string_view> rest = excludes ? text.substr(1) : text;
  std::uint32_t bits = 0;
  while (const auto word = take_part(rest, ',')) {
    if (word->empty()) continue;
    const auto at = find_word(*word, words);
    if (!at) {
      return config_error(fmt::format("{}: \"{}\" is none of {}: correct or unset it", variable, *word, listed(words)));
    }
    bits |= 1u << *at;
  }
  if (bits == 0) return config_error(fmt::format("{}: \"{}\" names none of {}", variable, text, listed(words)));
  return excludes ? all & ~bits : bits;
}

}  // namespace

std::optional<std::int64_t> parse_number(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
    text.remove_prefix(2);
  } else if (text.size() > 1 && text.front() == '0') {
    base = 8;
  }
  if (text.empty() || text.front() == '-') return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -number : number;
}

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

Result<AllowedValues> parse_allowed_values(std::string_view variable, std::string_view text,
                                           std::span<const std::string_view> words) {
  TUTTI_ASSERT(!words.empty() && words.size() < 32);
  AllowedValues choice;
  choice.allowed.fill((1u << words.size()) - 1);
  std::optional<std::string_view> rest = text;
  bool first = true;
  while (const auto entry = take_part(rest, ';')) {
    if (entry->empty()) continue;
    const std::size_t colon = entry->find(':');
    const bool for_all = colon == std::string_view::npos;
    if (for_all && !first) {
      return config_error(
          fmt::format("{}: \"{}\" names no function; only the first entry may do that: put one of {} "
                      "and a colon before it",
                      variable, *entry, listed(kFunctionNames)));
    }
    first = false;
    const auto bits = parse_words(variable, for_all ? *entry : entry->substr(colon + 1), words);
    if (!bits) return bits.error();
    if (for_all) {
      choice.allowed.fill(*bits);
      continue;
    }
    const auto function = find_word(entry->substr(0, colon), kFunctionNames);
    if (!function) {
      return config_error(fmt::format("{}: \"{}\" is none of {}: correct or unset it", variable,
                                      entry->substr(0, colon), listed(kFunctionNames)));
    }
    choice.allowed[*function] = *bits;
    choice.named[*function] = true;
  }
  return choice;
}

std::vector<InterfaceAddress> filter_interfaces(std::string_view pattern, SocketFamily family,
                                                std::span<const InterfaceAddress> there) {
  const bool excludes = pattern.starts_with('^');
  if (excludes) pattern.remove_prefix(1);
  const bool exact = pattern.starts_with('=');
  if (exact) pattern.remove_prefix(1);
  const auto fits = [&](std::string_view name) {
    std::optional<std::string_view> rest = pattern;
    while (const auto one = take_part(rest, ',')) {
      // NCCL allows ":PORT" after the name of an RDMA device. It means nothing for an interface, so it is cut off.
      const std::string_view wanted = one->substr(0, one->find(':'));
      if (!wanted.empty() && (exact ? name == wanted : name.starts_with(wanted))) return true;
    }
    return false;
  };
  std::vector<InterfaceAddress> found;
  for (const InterfaceAddress& one : there) {
    const bool v6 = one.address.find(':') != std::string::npos;
    const bool link_local = one.address.find('%') != std::string::npos;
    const bool family_fits = family == SocketFamily::kAny || v6 == (family == SocketFamily::kIpv6);
    if (family_fits && !link_local && fits(one.name) != excludes) found.push_back(one);
  }
  return found;
}

Status check_root_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const bool bracketed = text.starts_with('[');
  const auto port = colon == std::string_view::npos ? std::nullopt : parse_number(text.substr(colon + 1));
  const std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  const bool host_fits =
      bracketed ? host.size() > 2 && host.ends_with(']') : !host.empty() && host.find(':') == std::string_view::npos;
  if (!port || *port < 1 || *port > 65535 || !host_fits) {
    return config_error(fmt::format(
        "NCCL_COMM_ID=\"{}\" is not a valid address: give host:port, address:port or [v6 address]:port", text));
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> parse_conf(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::optional<std::string_view> rest = text;
  while (auto line = take_part(rest, '\n')) {
    if (line->ends_with('\r')) line->remove_suffix(1);
    const std::size_t equals = line->find('=');
    if (line->starts_with('#') || equals == std::string_view::npos) continue;
    pairs.emplace_back(line->substr(0, equals), line->substr(equals + 1));
  }
  return pairs;
}

}  // namespace tutti::nccl
