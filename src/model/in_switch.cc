// The formula of in_switch.h. The time between the machines is simulated on a network with one rank per machine.
#include "model/in_switch.h"

#include <algorithm>

#include "algorithms/algorithms.h"
#include "model/simulate.h"

namespace tutti {

Result<InSwitch> InSwitch::create(const Cluster& cluster) {
  if (cluster.machines == 1) return InSwitch(cluster.ranks_per_machine, std::nullopt);
  Cluster rail = cluster;
  rail.ranks_per_machine = 1;
  Result<Network> network = Network::create(rail);
  if (!network.ok()) return std::move(network).error();
  return InSwitch(cluster.ranks_per_machine, *std::move(network));
}

Result<double> InSwitch::all_reduce_us(std::uint64_t bytes, const Parameters& parameters) const {
  if (parameters.switch_gbytes_per_s <= 0) {
    return Error{.code = ErrorCode::kUnsupported,
                 .scope = ErrorScope::kCall,
                 .rank = -1,
                 .message = "the parameters have no switch that adds (switch_gbytes_per_s is 0)"};
  }
  double longer_us = static_cast<double>(bytes) / parameters.switch_gbytes_per_s / 1000;
  if (rail_) {
    const Result<Generator> trees = find_generator({.ranks = rail_->ranks()}, Algorithm::kDoubleTree);
    if (!trees.ok()) return trees.error();
    const Result<SimulateResult> across =
        simulate(*trees, bytes / ranks_per_machine_, *rail_, parameters, {.model = SimulationModel::kSweep});
    if (!across.ok()) return across.error();
    longer_us = std::max(longer_us, across->time_us - parameters.launch_us);
  }
  return parameters.launch_us + parameters.switch_latency_us + longer_us;
}

}  // namespace tutti
