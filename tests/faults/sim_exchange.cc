#include "faults/sim_exchange.h"

#include <algorithm>
#include <functional>

namespace tutti::faults {

SimExchange::SimExchange(SimEnvironment& world, SimOobDatagrams& datagrams, std::uint32_t rank)
    : world_(world), datagrams_(datagrams), rank_(rank), own_(std::make_shared<InProcessRelay>(), rank) {}

SimExchange::~SimExchange() {
  if (world_.dead(rank_)) return;
  for (std::uint32_t peer = 0; peer < world_.options().ranks; ++peer) {
    if (peer != rank_) arrive(peer, [](SimOobDatagrams::Way& way) { way.closed = true; });
  }
}

// In order. There is no link inside a machine that could be cut.
void SimExchange::arrive(std::uint32_t peer, std::function<void(SimOobDatagrams::Way&)> happen) {
  SimOobDatagrams::Way& way = datagrams_.ways[{rank_, peer}];
  const SimOptions& sim = world_.options();
  const auto spread = static_cast<std::uint64_t>(sim.max_latency_ns - sim.min_latency_ns) + 1;
  const std::int64_t latency_ns = sim.min_latency_ns + static_cast<std::int64_t>(world_.draw(spread));
  way.last_arrival_ns = std::max(way.last_arrival_ns, world_.now_ns() + latency_ns);
  world_.at(way.last_arrival_ns, [&way, &world = world_, peer, happen = std::move(happen)] {
    happen(way);
    world.wake(peer);
  });
}

bool SimExchange::peer_gone(std::uint32_t peer) {
  if (world_.dead(rank_)) return true;
  const SimOobDatagrams::Way& way = datagrams_.ways[{peer, rank_}];
  return way.closed || (world_.seen_dead(rank_, peer) && world_.now_ns() > way.last_arrival_ns);
}

void SimExchange::post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) {
  world_.step(rank_);
  if (world_.dead(rank_)) return;
  arrive(peer, [channel, datagram](SimOobDatagrams::Way& way) { way.box.put(channel, datagram); });
}

std::optional<std::string> SimExchange::take_datagram(std::uint32_t peer, std::uint64_t channel) {
  if (world_.dead(rank_)) return std::nullopt;
  return datagrams_.ways[{peer, rank_}].box.take(channel);
}

}  // namespace tutti::faults
