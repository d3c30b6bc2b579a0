// Computes the route of every connection in every rotation of the plan, and counts the chunks that its messages carry
// over each link.
#include "model/link_loads.h"

#include <algorithm>
#include <numeric>

namespace tutti {
namespace {

// Limit on the number of routes, so that they are computed in a few seconds.
constexpr std::uint64_t kMostRoutes = 4'000'000;

}  // namespace

LinkCounts count_on_links(const Programs& programs, const Network& network, std::uint32_t copies) {
  const Copies laid(programs, network, copies);
  LinkCounts counts;
  if (std::uint64_t{programs.connections.size()} * programs.places() * laid.turns() > kMostRoutes) return counts;
  counts.all.assign(network.links(), 0);
  counts.first.assign(network.links(), 0);
  std::vector<std::uint64_t> links;
  for (const ProgramConnection& each : programs.connections) {
    for (std::uint32_t place = 0; place < programs.places(); ++place) {
      const std::uint32_t from = programs.threads[each.from].rank_class + place * programs.classes;
      const auto to = static_cast<std::uint32_t>((std::uint64_t{from} + each.offset) % programs.ranks);
      for (std::uint32_t turn = 0; turn < laid.turns(); ++turn) {
        network.route(laid.turned(from, turn), laid.turned(to, turn), links);
        for (const std::uint64_t link : links) {
          counts.all[link] += double{1} * laid.with_turn(turn) * each.chunks_per_tile;
          if (turn == 0) counts.first[link] += each.chunks_per_tile;
        }
      }
    }
  }
  return counts;
}

std::vector<LinkLoad> busiest_links(const LinkCounts& counts, const Network& network, double bytes_per_chunk,
                                    double time_us) {
  const auto utilisation = [&](std::uint64_t link) {
    const double capacity = network.gbytes_per_s(link) * 1000 * time_us;
    return capacity > 0 ? counts.all[link] * bytes_per_chunk / capacity : 0;
  };
  std::vector<std::uint64_t> order(counts.all.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t shown = std::min(order.size(), kMostBusiest);
  std::vector<double> use(order.size());
  for (std::uint64_t link = 0; link < use.size(); ++link) use[link] = utilisation(link);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                    [&](std::uint64_t a, std::uint64_t b) { return use[a] != use[b] ? use[a] > use[b] : a < b; });
  std::vector<LinkLoad> loads;
  for (std::size_t i = 0; i < shown && counts.all[order[i]] > 0; ++i) {
    loads.push_back({.name = network.name(order[i]),
                     .bytes = counts.all[order[i]] * bytes_per_chunk,
                     .utilisation = use[order[i]]});
  }
  return loads;
}

}  // namespace tutti
