// The simulator: runs a plan over times. Pure functions; may be used from any thread.
//
// There are three models, which use the same recurrences (docs/decisions/0016-cost-model.md):
//   sweep   max-plus: every step begins when its channel is free and its messages and credits have arrived. Messages
//           delay each other only at a port, and only messages of one channel. Ranks that are equivalent (because plan
//           and network are shifted onto themselves) are computed as one vector, or as one number if nothing
//           distinguishes them.
//   events  a heap of events: NICs and cores serve one message or rank at a time, and durations may have jitter.
//   flows   events, and messages that share links share their bandwidth max-min fairly. While a message is slowed down
//           further on its route, its port also sends messages of other connections.
// If nothing is shared, all three give the same time.
//
// All three models simplify. All chunks of a tile have equal length (in the runtime they differ by at most 64
// bytes). If several channels run copies of the plan, only one copy is simulated, with its share of bandwidth and
// ports. The copies are rotated by one rank of a machine each, so that ranks that send to other machines use
// different ports.
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
  // Flows for at most kMostFlows messages, otherwise events for at most kMostEvents steps, otherwise the sweep.
  kAuto,
  kSweep,
  kEvents,
  kFlows,
};

struct Straggler {
  std::uint32_t rank = 0;
  double factor = 1;  // all work of this rank, including its sends, takes this many times as long; >= 1
};

struct SimulateOptions {
  SimulationModel model = SimulationModel::kAuto;
  Protocol protocol = Protocol::kSimple;
  std::uint32_t channels = 0;  // 0: Parameters::channels
  std::vector<Straggler> stragglers{};
  std::vector<std::string> dead_links{};  // names as in Network::name(); traffic uses other routes if there are any
  std::vector<std::uint32_t> dead_ranks{};
  // Every duration is multiplied by 1 + jitter * (exponential random number of mean 1). Only for events and flows.
  double jitter = 0;
  std::uint64_t seed = 1;
  // Flows: messages of a port never overtake a message that is slowed down by a bottleneck, see PortQueue.
  bool ports_in_order = false;
  // Traces are recorded for ranks below this number. Only for events and flows.
  std::uint32_t traced_ranks = 0;
  std::function<void(double part)> progress{};  // called now and then with the completed part, 0 .. 1
};

struct LinkLoad {
  std::string name{};
  double bytes = 0;
  double utilisation = 0;  // fraction of its capacity that is used, averaged over the whole time
};

// A step that one channel of a rank ran in [begin_us, end_us).
struct TracedStep {
  std::uint32_t rank = 0;
  std::uint16_t channel = 0;
  std::uint32_t step = 0;
  std::uint64_t tile = 0;
  double ready_us = 0;  // when its channel was free; it waited for its inputs until begin_us
  double begin_us = 0;
  double end_us = 0;
};

struct SimulateResult {
  double time_us = 0;  // until the last rank has finished
  SimulationModel model = SimulationModel::kSweep;
  std::uint64_t messages = 0;
  std::uint64_t tiles = 0;
  // at most kMostBusiest, the busiest first; empty if there are too many routes to add up
  std::vector<LinkLoad> busiest{};
  std::uint64_t links_in_use = 0;  // number of links that carry bytes; 0 also if there are too many routes to add up
  std::vector<TracedStep> trace{};
};

// The time that the busiest link needs for its bytes, if that is longer than time_us. This can happen in the sweep
// and the events model, because their messages do not share links. Otherwise time_us.
inline double time_by_links_us(const SimulateResult& result) {
  const double most = result.busiest.empty() ? 0 : result.busiest.front().utilisation;
  return most > 1 ? most * result.time_us : result.time_us;
}

// Limits up to which kAuto selects flows and events. Each takes seconds on one core.
inline constexpr std::uint64_t kMostFlows = 200'000;
inline constexpr std::uint64_t kMostEvents = 10'000'000;
inline constexpr std::size_t kMostBusiest = 10;
inline constexpr std::size_t kMostTraced = 1'000'000;  // number of steps; later ones are not recorded

// `bytes` is the length of one block of the call's buffers (plan/collective.h), like Lengths::count but in bytes:
// the whole message of an all_reduce, or one rank's share of an all_gather.
//
// Errors: kInvalidArgument for options that do not fit the network; kPeerLost, with rank and step, if a dead rank
// prevents others from finishing; kUnsupported if the plan is too large for the requested model, with a
// suggestion.
Result<SimulateResult> simulate(const Generator& generator, std::uint64_t bytes, const Network& network,
                                const Parameters& parameters, const SimulateOptions& options);

}  // namespace tutti
