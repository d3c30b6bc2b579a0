#include "model/fit_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti {
namespace {

constexpr std::array<std::string_view, kMeasuredWays> kWayNames = {
    "one_shot",
    "two_shot",
    "registered one_shot",
    "registered two_shot",
    "all_reduce by messages",
    "all_reduce by calls",
    "broadcast by messages",
    "broadcast by calls",
    "all_gather by messages",
    "all_gather by calls",
};

// A limit other than the default is taken only if the measured calls then take less time by this factor, as a geometric
// mean (or if last_below() must not return a default that is shorter than all measured lengths). Small noise does not
// reach this, for example if the system forbids the system calls, so that both measurements use messages.
constexpr double kClearGain = 1.05;

// Two ways of the same call: `below` for sizes below a limit, and `above` for longer ones.
struct Pair {
  MeasuredWay below;
  MeasuredWay above;
};

// By size: the logarithm of a ratio, which is the time of the way `below` divided by that of the way `above`. If
// several pairs share a limit, their logarithms are added.
using Ratios = std::map<std::uint64_t, double>;

Ratios ratios_of(std::span<const Measurement> measured, std::uint32_t ranks, std::span<const Pair> pairs) {
  Ratios ratios;
  for (const Pair& pair : pairs) {
    const std::string below = measurement_name(ranks, pair.below);
    const std::string above = measurement_name(ranks, pair.above);
    for (const Measurement& one : measured) {
      if (one.what != below || !(one.median_us > 0)) continue;
      for (const Measurement& other : measured) {
        if (other.what != above || other.bytes != one.bytes || !(other.median_us > 0)) continue;
        ratios[one.bytes] += std::log(one.median_us / other.median_us);
      }
    }
  }
  return ratios;
}

// Returns a number n: calls of the n shortest sizes are carried out by the way `below`, and calls of the other sizes by
// the way `above`. n is at least `fewest`, and is `usual` if no other number is clearly better (kClearGain).
std::size_t sizes_below(const Ratios& ratios, std::size_t fewest, std::size_t usual) {
  // Indexed by a number n of sizes: by how much the sum of the logarithms of all times changes if the n shortest sizes
  // use the way `below`, compared with the way `above` for all sizes.
  std::vector<double> costs{0};
  for (const auto& [bytes, ratio] : ratios) costs.push_back(costs.back() + ratio);
  const auto least = std::min_element(costs.begin() + static_cast<std::ptrdiff_t>(fewest), costs.end());
  const double gain = std::log(kClearGain) * static_cast<double>(ratios.size());
  return costs[usual] - *least < gain ? usual : static_cast<std::size_t>(least - costs.begin());
}

std::uint64_t size_at(const Ratios& ratios, std::size_t index) {
  return std::next(ratios.begin(), static_cast<std::ptrdiff_t>(index))->first;
}

// The length of the longest calls that are carried out by the way `below`: at least the shortest measured length,
// because shorter calls were not measured. `usual`: the default of this length. Nothing if nothing was measured.
std::optional<std::uint64_t> last_below(const Ratios& ratios, std::uint64_t usual) {
  if (ratios.empty()) return std::nullopt;
  const auto fits = static_cast<std::size_t>(std::distance(ratios.begin(), ratios.upper_bound(usual)));
  const std::size_t below = sizes_below(ratios, 1, std::max<std::size_t>(fits, 1));
  return below == fits ? usual : size_at(ratios, below - 1);
}

// The length of the shortest calls that are carried out by the way `above`; 0: none. `usual`: the default of this
// length. Nothing if nothing was measured.
std::optional<std::uint64_t> first_above(const Ratios& ratios, std::uint64_t usual) {
  if (ratios.empty()) return std::nullopt;
  const auto begin = usual == 0 ? ratios.end() : ratios.lower_bound(usual);
  const auto shorter = static_cast<std::size_t>(std::distance(ratios.begin(), begin));
  const std::size_t below = sizes_below(ratios, 0, shorter);
  if (below == shorter) return usual;
  return below == ratios.size() ? 0 : size_at(ratios, below);
}

}  // namespace

std::string measurement_name(std::uint32_t ranks, MeasuredWay way) {
  return fmt::format("{}{}{}", ranks, kChoiceMark, kWayNames[static_cast<std::size_t>(way)]);
}

std::vector<Measurement> shortest_of(std::span<const Measurement> measured) {
  std::vector<Measurement> shortest;
  for (const Measurement& one : measured) {
    const auto same = std::find_if(shortest.begin(), shortest.end(), [&](const Measurement& other) {
      return other.what == one.what && other.bytes == one.bytes;
    });
    if (same == shortest.end()) {
      shortest.push_back(one);
    } else if (one.median_us < same->median_us) {
      *same = one;
    }
  }
  return shortest;
}

double noise_of_passes(std::span<const Measurement> measured) {
  std::map<std::pair<std::string_view, std::uint64_t>, std::vector<double>> times;
  for (const Measurement& one : measured) times[{one.what, one.bytes}].push_back(one.median_us);
  std::vector<double> ratios;
  for (auto& [key, values] : times) {
    std::sort(values.begin(), values.end());
    ratios.push_back(values[values.size() / 2] / values.front());
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios.empty() ? 1 : ratios[ratios.size() / 2];
}

std::vector<RankChoices> fit_choices(std::span<const Measurement> measured, std::span<const std::uint32_t> ranks,
                                     std::uint32_t cores) {
  using enum MeasuredWay;
  constexpr Pair kShort[] = {{kOneShot, kTwoShot}, {kRegisteredOneShot, kRegisteredTwoShot}};
  constexpr Pair kCopies[] = {{kBroadcastByMessages, kBroadcastByCalls}, {kAllGatherByMessages, kAllGatherByCalls}};
  constexpr Pair kLongSums[] = {{kAllReduceByMessages, kAllReduceByCalls}};
  std::vector<RankChoices> all;
  for (const std::uint32_t number : ranks) {
    const MachineChoices usual = default_choices(number, cores);
    const auto one_shot = last_below(ratios_of(measured, number, kShort), usual.one_shot_bytes);
    const auto copies = first_above(ratios_of(measured, number, kCopies), usual.copy_by_calls_bytes);
    // In the measurements of an all_reduce, the sizes are those of the whole call. The choice is the size of one rank's
    // share.
    const auto sums = first_above(ratios_of(measured, number, kLongSums), usual.all_reduce_by_calls_bytes * number);
    if (!one_shot && !copies && !sums) continue;
    all.push_back({.ranks = number,
                   .cores = cores,
                   .choices = {.one_shot_bytes = one_shot.value_or(usual.one_shot_bytes),
                               .copy_by_calls_bytes = copies.value_or(usual.copy_by_calls_bytes),
                               .all_reduce_by_calls_bytes = sums ? *sums / number : usual.all_reduce_by_calls_bytes}});
  }
  return all;
}

}  // namespace tutti
