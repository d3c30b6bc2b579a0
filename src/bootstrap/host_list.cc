// expand_hosts(): parses Slurm's host lists. It is declared in bootstrap/launcher.h.
#include <fmt/format.h>

#include <charconv>

#include "bootstrap/launcher.h"

namespace tutti {
namespace {

Error bad_list(std::string_view list) {
  return {ErrorCode::kConfig, ErrorScope::kCall, -1,
          fmt::format("\"{}\" is no list of hosts such as n[01-04,07],gpu1", list.substr(0, 200))};
}

// Returns the index at which the first element of a comma-separated list ends. Commas in brackets do not count.
std::size_t element_end(std::string_view list) {
  int depth = 0;
  for (std::size_t at = 0; at < list.size(); ++at) {
    if (list[at] == '[') ++depth;
    if (list[at] == ']') --depth;
    if (list[at] == ',' && depth == 0) return at;
  }
  return list.size();
}

// Expands a range to numbers as texts: "01-04" to "01", "02", "03", "04", and "07" to "07". The numbers have at
// least the width of the first one. Appends them to `texts` until it has `longest` elements. Returns false if
// `range` has another form, ends before it begins, or contains a number with more than 18 digits.
bool expand_range(std::string_view range, std::size_t longest, std::vector<std::string>& texts) {
  const std::string_view first = range.substr(0, range.find('-'));
  const std::string_view last = first.size() == range.size() ? first : range.substr(first.size() + 1);
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  const auto good = [](std::string_view text, std::uint64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && text.size() <= 18;
  };
  if (!good(first, low) || !good(last, high) || high < low) return false;
  for (std::uint64_t value = low; value <= high && texts.size() < longest; ++value) {
    texts.push_back(fmt::format("{:0{}}", value, first.size()));
  }
  return true;
}

// Expands one element, for example "n[08-10]-ib": a prefix, ranges in brackets, and the rest, which may contain
// brackets as well. An element without brackets is one name. Appends the names to `hosts` until it has `longest`
// elements. Returns false if the element is empty, a bracket has no counterpart, or a range is malformed. A "]" before
// the first "[" is not detected.
bool expand_element(std::string_view element, std::size_t longest, std::vector<std::string>& hosts) {
  const std::size_t open = element.find('[');
  if (open == std::string_view::npos) {
    if (element.empty() || element.find(']') != std::string_view::npos) return false;
    hosts.emplace_back(element);
    return true;
  }
  const std::size_t close = element.find(']', open);
  if (close == std::string_view::npos) return false;
  std::vector<std::string> middles;
  std::string_view ranges = element.substr(open + 1, close - open - 1);
  while (true) {
    const std::size_t comma = ranges.find(',');
    if (!expand_range(ranges.substr(0, comma), longest, middles)) return false;
    if (comma == std::string_view::npos) break;
    ranges.remove_prefix(comma + 1);
  }
  std::vector<std::string> tails;
  if (close + 1 == element.size()) {
    tails.emplace_back();
  } else if (!expand_element(element.substr(close + 1), longest, tails)) {
    return false;
  }
  for (const std::string& middle : middles) {
    for (const std::string& tail : tails) {
      if (hosts.size() == longest) return true;
      hosts.push_back(std::string(element.substr(0, open)) + middle + tail);
    }
  }
  return true;
}

}  // namespace

Result<std::vector<std::string>> expand_hosts(std::string_view list, std::size_t longest) {
  std::vector<std::string> hosts;
  std::string_view rest = list;
  while (hosts.size() < longest) {
    const std::size_t end = element_end(rest);
    if (!expand_element(rest.substr(0, end), longest, hosts)) return bad_list(list);
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  if (hosts.size() > longest) hosts.resize(longest);
  return hosts;
}

}  // namespace tutti
