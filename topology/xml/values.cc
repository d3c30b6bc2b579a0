#include "topology/xml/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace tutti {
namespace {

constexpr int kHexadecimal = 16;
constexpr std::size_t kWordDigits = 8;

template <class T>
std::optional<T> whole_number(std::string_view text, int base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Returns the 32-bit words of a CPU mask, that of the CPUs 0 to 31 first. Empty if the text is not a mask.
std::vector<std::uint32_t> mask_words(std::string_view text) {
  std::vector<std::uint32_t> words;
  while (true) {
    const std::size_t comma = text.rfind(',');
    const std::string_view digits = comma == std::string_view::npos ? text : text.substr(comma + 1);
    const auto word = whole_number<std::uint32_t>(digits, kHexadecimal);
    if (!word || digits.size() > kWordDigits) return {};
    words.push_back(*word);
    if (comma == std::string_view::npos) return words;
    text = text.substr(0, comma);
  }
}

}  // namespace

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  text = trimmed(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  return whole_number<std::int64_t>(trimmed(text), 10);
}

std::optional<std::uint32_t> parse_hexadecimal(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  return whole_number<std::uint32_t>(text, kHexadecimal);
}

std::optional<double> parse_link_speed(std::string_view text) {
  text = trimmed(text);
  for (std::string_view ending : {"PCIe", "GT/s"}) {
    if (text.ends_with(ending)) text = trimmed(text.substr(0, text.size() - ending.size()));
  }
  return parse_real(text);
}

std::optional<std::string> parse_bus_id(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon < 4 || text.size() != colon + 8) return std::nullopt;
  if (text[colon + 3] != ':' || text[colon + 6] != '.') return std::nullopt;
  const auto domain = whole_number<std::uint32_t>(text.substr(0, colon), kHexadecimal);
  const auto bus = whole_number<std::uint32_t>(text.substr(colon + 1, 2), kHexadecimal);
  const auto device = whole_number<std::uint32_t>(text.substr(colon + 4, 2), kHexadecimal);
  const auto function = whole_number<std::uint32_t>(text.substr(colon + 7, 1), kHexadecimal);
  if (!domain || !bus || !device || !function) return std::nullopt;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", *domain, *bus, *device, *function);
}

bool is_mask(std::string_view text) { return !mask_words(text).empty(); }

bool masks_overlap(std::string_view one, std::string_view other) {
  const std::vector<std::uint32_t> a = mask_words(one);
  const std::vector<std::uint32_t> b = mask_words(other);
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if ((a[i] & b[i]) != 0) return true;
  }
  return false;
}

}  // namespace tutti
