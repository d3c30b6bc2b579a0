// All-reduce whose sums are made by the switches of the machines (NVLink SHARP, which NCCL calls NVLS). There is no
// plan for it: the switch adds, no rank does. So this is a closed form beside the simulator, for machines whose
// parameters have such a switch, and for the comparison with libraries that use it; Tutti itself does not, yet.
//
//   launch + latency + the longer of: bytes / the switch's bandwidth; each rank's share of the bytes all-reduced among
//   the machines, with those of its rail, by the double tree (the sweep)
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "model/network.h"
#include "model/parameters.h"
#include "topology/cluster.h"
#include "tutti/result.h"

namespace tutti {

// A value; const functions from any thread.
class InSwitch {
 public:
  // Errors: Network::create()'s.
  static Result<InSwitch> create(const Cluster& cluster);

  // Of all ranks of the cluster. Errors: kUnsupported where the parameters have no switch that adds; simulate()'s.
  Result<double> all_reduce_us(std::uint64_t bytes, const Parameters& parameters) const;

 private:
  InSwitch(std::uint32_t ranks_per_machine, std::optional<Network> rail)
      : ranks_per_machine_(ranks_per_machine), rail_(std::move(rail)) {}

  std::uint32_t ranks_per_machine_;
  std::optional<Network> rail_;  // one rank to a machine; nothing where there is one machine
};

}  // namespace tutti
