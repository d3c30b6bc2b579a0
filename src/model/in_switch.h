// InSwitch: predicts the time of an all-reduce in which the switches inside the machines add the values (NVLink
// SHARP, called NVLS in NCCL). Such an all-reduce has no plan, because the ranks do not add. So simulate() cannot
// predict it, and this class uses a formula instead. It is for comparisons with libraries that use such switches.
// Tutti itself does not use them yet.
//
//   time = launch_us + switch_latency_us + the longer of:
//     - the bytes of the call / switch_gbytes_per_s, which is the time inside the machines
//     - the time between the machines: an all-reduce of bytes / (ranks per machine) by the double tree over one rank
//       of each machine, simulated by the model kSweep, without launch_us; 0 if there is one machine
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
  // Errors: those of Network::create(), for a network with one rank per machine.
  static Result<InSwitch> create(const Cluster& cluster);

  // Returns the time in microseconds of an all-reduce of `bytes` bytes over all ranks of the cluster. Errors:
  // kUnsupported if parameters.switch_gbytes_per_s is 0; those of find_generator() and simulate().
  Result<double> all_reduce_us(std::uint64_t bytes, const Parameters& parameters) const;

 private:
  InSwitch(std::uint32_t ranks_per_machine, std::optional<Network> rail)
      : ranks_per_machine_(ranks_per_machine), rail_(std::move(rail)) {}

  std::uint32_t ranks_per_machine_;
  // a network with one rank per machine; empty if there is only one machine
  std::optional<Network> rail_;
};

}  // namespace tutti
