// InSwitch: the time of an all-reduce in which the switches of the machines add (NVLink SHARP, called NVLS in
// NCCL). It has no plan, because the additions are not made by ranks. So this is a formula that is used in
// addition to the simulator, for machines whose parameters have such a switch, to compare with libraries that use
// it. Tutti itself does not use such switches yet.
//
//   time = launch + latency + the longer of:
//     - bytes / bandwidth of the switch
//     - each rank's share of the bytes, all-reduced between the machines, among the ranks of one rail, by the double
//       tree (simulated by the sweep)
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "model/network.h"
#include "model/parameters.h"
#include "topology/cluster.h"
#include "tutti/result.h"

namespace tutti {

// A value. Const functions may be called from any thread.
class InSwitch {
 public:
  // Errors: those of Network::create().
  static Result<InSwitch> create(const Cluster& cluster);

  // The time for all ranks of the cluster. Errors: kUnsupported if the parameters have no switch that adds; those
  // of simulate().
  Result<double> all_reduce_us(std::uint64_t bytes, const Parameters& parameters) const;

 private:
  InSwitch(std::uint32_t ranks_per_machine, std::optional<Network> rail)
      : ranks_per_machine_(ranks_per_machine), rail_(std::move(rail)) {}

  std::uint32_t ranks_per_machine_;
  std::optional<Network> rail_;  // a network with one rank per machine; empty if there is only one machine
};

}  // namespace tutti
