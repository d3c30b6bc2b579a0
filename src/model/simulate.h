// The simulator: predicts how long a plan takes on a network. It runs the steps of the plan, but with times instead
// of data. Pure functions; may be used from any thread.
//
// There are three models (SimulationModel), which use the same recurrences (docs/decisions/0016-cost-model.md):
//   kSweep  max-plus: every step begins when its channel is free and its messages and credits have arrived. Messages
//           delay each other only at a port (NIC), and only messages of one channel. Ranks that are equivalent, because
//           plan and network do not change if all ranks are shifted, are computed as one.
//   kEvents a heap of events: a NIC serves one message at a time, and a core one rank. Durations may have jitter.
//   kFlows  as kEvents, but messages that share links share their bandwidth max-min fairly. While a message is slowed
//           down further on its route, its port also sends messages of other connections (unless
//           SimulateOptions::ports_in_order is true).
// If no port, core or link is shared, all three give the same time.
//
// All three models simplify. All chunks of a tile have equal length (in the runtime they can differ slightly, see
// plan/tiling.h). If several channels run copies of the plan, only one copy is simulated, with its share of the
// bandwidth. In copy k, the ranks of each machine are rotated by k, so that ranks that send to other machines use
// different NICs; a plan with a root is not rotated (Copies in model/link_loads.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/network.h"
#include "model/parameters.h"
#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

enum class SimulationModel : std::uint8_t {
  // kFlows if the call has at most kMostFlows messages in one copy of the plan, Parameters::cores is 0, and
  // count_on_links() (model/link_loads.h) returns counts. Otherwise kEvents for at most kMostEvents steps. Otherwise
  // kSweep, or the error kUnsupported if an option needs events (jitter, dead ranks, traces).
  kAuto,
  // The other values select the model of that name. kEvents accepts 10 times as many steps, and kFlows 10 times as many
  // messages, as kAuto allows for them.
  kSweep,
  kEvents,
  kFlows,
};

struct Straggler {
  std::uint32_t rank = 0;
  // All work of this rank, including its sends but not their latency, takes this many times as long: 1 to 10^6. If a
  // rank is listed several times, the largest factor counts.
  double factor = 1;
};

struct SimulateOptions {
  SimulationModel model = SimulationModel::kAuto;
  Protocol protocol = Protocol::kSimple;
  // number of copies of the plan; 0: Parameters::channels
  std::uint32_t channels = 0;
  std::vector<Straggler> stragglers{};
  // The links that carry nothing, each by its name as Network::name() returns it. Messages use other routes; if there
  // is no other route, simulate() returns an error.
  std::vector<std::string> dead_links{};
  // These ranks run no step. Only for kEvents and kFlows.
  std::vector<std::uint32_t> dead_ranks{};
  // The durations of steps and of messages are each multiplied by 1 + jitter * (exponential random number with mean
  // 1). At most 1000. Only for kEvents and kFlows. Credits have no jitter, and with kFlows neither have the latency and
  // the gap of a message at a port.
  double jitter = 0;
  // seed of the random numbers of the jitter
  std::uint64_t seed = 1;
  // Only for kFlows. If true, a port sends one message at a time: it waits even if a bottleneck further on the route
  // slows the message down (see PortQueue).
  bool ports_in_order = false;
  // The steps of ranks below this number are recorded in SimulateResult::trace (at most kMostTraced steps). Only for
  // kEvents and kFlows.
  std::uint32_t traced_ranks = 0;
  // Called now and then with the completed part of the simulation, 0 .. 1. May be empty.
  std::function<void(double part)> progress{};
};

struct LinkLoad {
  // the name of the link, as Network::name() returns it
  std::string name{};
  // bytes that the call sends over this link, all copies of the plan together
  double bytes = 0;
  // `bytes` divided by the bytes that the link can carry during the whole call. With kSweep and kEvents it may be above
  // 1, because these models do not limit the bytes on a link.
  double utilisation = 0;
};

// A step of one tile that one channel of a rank ran from begin_us to end_us. Times count from the start of the
// first step.
struct TracedStep {
  std::uint32_t rank = 0;
  std::uint16_t channel = 0;
  // index of the step in its channel
  std::uint32_t step = 0;
  std::uint64_t tile = 0;
  // when the channel had ended its previous step; from then until begin_us it waited for messages, credits, another
  // channel or a core
  double ready_us = 0;
  double begin_us = 0;
  double end_us = 0;
};

struct SimulateResult {
  // from the start of the call until the last rank that is not dead has finished, including Parameters::launch_us
  double time_us = 0;
  SimulationModel model = SimulationModel::kSweep;  // the model that was used, never kAuto
  // number of messages of the call, of all ranks, tiles and copies
  std::uint64_t messages = 0;
  // number of tiles into which each copy divides its part of the call
  std::uint64_t tiles = 0;
  // The links that are used most, at most kMostBusiest, the busiest first. Empty if no message crosses a link, or if
  // count_on_links() returns no counts.
  std::vector<LinkLoad> busiest{};
  // number of links that carry bytes; 0 also if count_on_links() returns no counts
  std::uint64_t links_in_use = 0;
  // in the order of their ends; at most kMostTraced
  std::vector<TracedStep> trace{};
};

// A time of the call that also considers links: the time that the busiest link needs for its bytes, if that is longer
// than time_us, otherwise time_us. The busiest link can need longer than time_us with kSweep and kEvents, because their
// messages do not share links.
inline double time_by_links_us(const SimulateResult& result) {
  const double most = result.busiest.empty() ? 0 : result.busiest.front().utilisation;
  return most > 1 ? most * result.time_us : result.time_us;
}

// kAuto selects kFlows up to kMostFlows messages, and kEvents up to kMostEvents steps. A simulation of that size
// takes seconds on one core.
inline constexpr std::uint64_t kMostFlows = 200'000;
inline constexpr std::uint64_t kMostEvents = 10'000'000;
inline constexpr std::size_t kMostBusiest = 10;
// largest number of steps in a trace; later ones are not recorded
inline constexpr std::size_t kMostTraced = 1'000'000;

// Simulates one call. `bytes` is the length of one block of the call's buffers (plan/collective.h), like
// Lengths::count but in bytes. For example, a block is the whole message of an all_reduce, or one rank's share of
// an all_gather.
//
// Errors: kInvalidArgument if the plan, the options or the parameters do not fit each other, the network or the
// requested model; kPeerLost, with rank and step, if other ranks wait for a dead rank; kUnsupported, with a suggestion,
// if the plan is too large for the requested model, or if kFlows is requested for a network without links; kInvalidPlan
// if the plan does not run to its end.
Result<SimulateResult> simulate(const Generator& generator, std::uint64_t bytes, const Network& network,
                                const Parameters& parameters, const SimulateOptions& options);

}  // namespace tutti
