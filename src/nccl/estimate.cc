#include "nccl/estimate.h"

#include <algorithm>
#include <bit>
#include <map>

#include "base/collective_table.h"

namespace tutti::nccl {
namespace {

// Costs for calls that the cost model cannot predict: the time of one round of messages, and the time for each byte
// that a rank sends. The values for shared memory (kHost) were measured with bench/ on a small machine. Those for a
// network and for GPUs are estimates, of the order of magnitude that vendors publish.
struct Costs {
  double round_us;
  double us_per_byte;
};
constexpr Costs kHost{.round_us = 0.5, .us_per_byte = 1e-4};      // 10 GB/s
constexpr Costs kNetwork{.round_us = 10.0, .us_per_byte = 1e-3};  // 1 GB/s
constexpr Costs kDevice{.round_us = 3.0, .us_per_byte = 5e-6};    // 200 GB/s

Costs costs_of(const Comm& comm) {
  if (comm.communicator->nodes() > 1) return kNetwork;
  return comm.device.number >= 0 && comm.communicator->runs_on_devices() ? kDevice : kHost;
}

// The work of a call: the number of rounds of messages, and the number of bytes that a rank sends, in units of
// count * size_of(type).
struct Effort {
  double rounds;
  double blocks;
};

Effort effort_of(CollectiveKind kind, Algorithm algorithm, double ranks) {
  const double halvings = std::bit_width(static_cast<unsigned>(ranks) - 1);
  const bool ring = algorithm == Algorithm::kRing || algorithm == Algorithm::kChain;
  const double steps = ring ? ranks - 1 : halvings;
  if (!has_data(kind)) return {.rounds = halvings, .blocks = 0};
  if (has_blocks(kind)) return {.rounds = steps, .blocks = ranks - 1};
  if (gives_sum_to_all(kind)) return {.rounds = 2 * steps, .blocks = 2 * (ranks - 1) / ranks};
  return {.rounds = steps, .blocks = 1};
}

double estimate(const GroupCall& one) {
  const Costs costs = costs_of(*one.comm);
  const double bytes = static_cast<double>(one.call.count * size_of(one.call.type));
  if (one.kind != GroupCall::CallType::kCollective) return costs.round_us + bytes * costs.us_per_byte;
  if (one.comm->ranks == 1) return bytes * costs.us_per_byte;
  return estimated_us(*one.comm, one.call.kind, one.call.count, one.call.type, one.config.algorithm);
}

}  // namespace

double estimated_us(const std::vector<GroupCall>& calls) {
  std::map<const Comm*, double> sums;
  double longest = 0;
  for (const GroupCall& one : calls) longest = std::max(longest, sums[one.comm.get()] += estimate(one));
  return longest;
}

double estimated_us(const Comm& comm, CollectiveKind kind, std::size_t count, DataType type, Algorithm algorithm) {
  const Communicator& communicator = *comm.communicator;
  if (const auto predicted = communicator.predicted_us(kind, count, type, algorithm)) return *predicted;
  if (algorithm == Algorithm::kAuto) {
    algorithm = communicator.auto_algorithm(kind, count, type, communicator.runs_on_devices());
  }
  const Costs costs = costs_of(comm);
  const double bytes = static_cast<double>(count * size_of(type));
  const Effort work = effort_of(kind, algorithm, comm.ranks);
  return work.rounds * costs.round_us + work.blocks * bytes * costs.us_per_byte;
}

}  // namespace tutti::nccl
