#include "faults/sim_exchange.h"

#include <algorithm>
#include <functional>

namespace tutti::faults {

SimExchange::SimExchange(SimEnvironment& environment, SimOobDatagrams& datagrams, std::uint32_t rank)
    : environment_(environment), datagrams_(datagrams), rank_(rank), own_(std::make_shared<InProcessRelay>(), rank) {}

SimExchange::~SimExchange() {
  if (environment_.dead(rank_)) return;
  for (std::uint32_t peer = 0; peer < environment_.options().ranks; ++peer) {
    if (peer != rank_) arrive(peer, [](SimOobDatagrams::Way& way) { way.closed = true; });
  }
}

// In order. There is no link inside a machine that could be cut.
void SimExchange::arrive(std::uint32_t peer, std::function<void(SimOobDatagrams::Way&)> happen) {
  SimOobDatagrams::Way& way = datagrams_.ways[{rank_, peer}];
  const SimOptions& sim = environment_.options();
  const auto spread = static_cast<std::uint64_t>(sim.max_latency_ns - sim.min_latency_ns) + 1;
  const std::int64_t latency_ns = sim.min_latency_ns + static_cast<std::int64_t>(environment_.draw(spread));
  way.last_arrival_ns = std::max(way.last_arrival_ns, environment_.now_ns() + latency_ns);
  environment_.at(way.last_arrival_ns, [&way, &environment = environment_, peer, happen = std::move(happen)] {
    happen(way);
    environment.wake(peer);
  });
}

bool SimExchange::peer_gone(std::uint32_t peer) {
  if (environment_.dead(rank_)) return true;
  const SimOobDatagrams::Way& way = datagrams_.ways[{peer, rank_}];
  return way.closed || (environment_.seen_dead(rank_, peer) && environment_.now_ns() > way.last_arrival_ns);
}

void SimExchange::post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) {
  environment_.step(rank_);
  if (environment_.dead(rank_)) return;
  arrive(peer, [channel, datagram](SimOobDatagrams::Way& way) { way.box.put(channel, datagram); });
}

std::optional<std::string> SimExchange::take_datagram(std::uint32_t peer, std::uint64_t channel) {
  if (environment_.dead(rank_)) return std::nullopt;
  return datagrams_.ways[{peer, rank_}].box.take(channel);
}

}  // namespace tutti::faults
