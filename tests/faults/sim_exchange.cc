// Implements SimExchange: datagrams between the ranks of one simulated machine.
#include "faults/sim_exchange.h"

#include <algorithm>
#include <functional>

namespace tutti::faults {

SimExchange::SimExchange(SimEnvironment& environment, SimOobDatagrams& datagrams, std::uint32_t rank)
    : environment_(environment), datagrams_(datagrams), rank_(rank), own_(std::make_shared<InProcessRelay>(), rank) {}

SimExchange::~SimExchange() {
  if (environment_.dead(rank_)) return;
  for (std::uint32_t peer = 0; peer < environment_.options().ranks; ++peer) {
    if (peer != rank_) arrive(peer, [](SimOobDatagrams::Path& path) { path.closed = true; });
  }
}

// Calls `happen` after a random latency, in the order of the calls. The links inside a machine cannot be cut.
void SimExchange::arrive(std::uint32_t peer, std::function<void(SimOobDatagrams::Path&)> happen) {
  SimOobDatagrams::Path& path = datagrams_.paths[{rank_, peer}];
  const SimOptions& sim = environment_.options();
  const auto spread = static_cast<std::uint64_t>(sim.max_latency_ns - sim.min_latency_ns) + 1;
  const std::int64_t latency_ns = sim.min_latency_ns + static_cast<std::int64_t>(environment_.draw(spread));
  path.last_arrival_ns = std::max(path.last_arrival_ns, environment_.now_ns() + latency_ns);
  environment_.at(path.last_arrival_ns, [&path, &environment = environment_, peer, happen = std::move(happen)] {
    happen(path);
    environment.wake(peer);
  });
}

bool SimExchange::peer_gone(std::uint32_t peer) {
  if (environment_.dead(rank_)) return true;
  const SimOobDatagrams::Path& path = datagrams_.paths[{peer, rank_}];
  return path.closed || (environment_.seen_dead(rank_, peer) && environment_.now_ns() > path.last_arrival_ns);
}

void SimExchange::post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) {
  environment_.step(rank_);
  if (environment_.dead(rank_)) return;
  arrive(peer, [channel, datagram](SimOobDatagrams::Path& path) { path.queue.put(channel, datagram); });
}

std::optional<std::string> SimExchange::take_datagram(std::uint32_t peer, std::uint64_t channel) {
  if (environment_.dead(rank_)) return std::nullopt;
  return datagrams_.paths[{peer, rank_}].queue.take(channel);
}

}  // namespace tutti::faults
