// The simulator: a plan, run over times. Pure functions; any thread.
//
// Three levels of the same recurrences (docs/decisions/0016-cost-model.md):
//   sweep   max-plus: every step begins when its channel, its messages and its credits are there. Only messages of one
//           channel get in each other's way, at its port. Ranks that are alike (plan and network shifted onto
//           themselves) are one vector, or one number where nothing tells them apart.
//   events  one heap of events: NICs and cores serve one thing at a time, times may jitter.
//   flows   events, and messages that share links share their bandwidth, max-min fair. A port whose message is slowed
//           down by others further on carries the next ones of other connections meanwhile.
// Where nothing is shared, all three give the same time.
//
// What all three leave out: all chunks of a tile count as equally long (the runtime's differ by at most 64 bytes), and
// where several channels carry copies of the plan, one copy is run with its share of bandwidth and ports. The copies
// are laid over a machine turned by one rank each, so that ranks that send to other machines use different ports.
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
  kAuto,  // flows for at most kMostFlows messages, else events for at most kMostEvents steps, else the sweep
  kSweep,
  kEvents,
  kFlows,
};

struct Straggler {
  std::uint32_t rank = 0;
  double factor = 1;  // all that this rank does, sending included, takes this many times as long; >= 1
};

struct SimulateOptions {
  SimulationModel model = SimulationModel::kAuto;
  Protocol protocol = Protocol::kSimple;
  std::uint32_t channels = 0;  // 0: the parameters'
  std::vector<Straggler> stragglers{};
  std::vector<std::string> dead_links{};  // by Network::name(); traffic takes another way where there is one
  std::vector<std::uint32_t> dead_ranks{};
  double jitter = 0;  // every duration is multiplied by 1 + jitter * (an exponential of mean 1); events and flows only
  std::uint64_t seed = 1;
  bool ports_in_order = false;     // flows: a port's messages never overtake one whose way is narrow, see PortQueue
  std::uint32_t traced_ranks = 0;  // time lines are kept of the first so many ranks; events and flows only
  std::function<void(double part)> progress{};  // called now and then with the part that is done, 0 .. 1
};

struct LinkLoad {
  std::string name{};
  double bytes = 0;
  double utilisation = 0;  // of its capacity over the whole time
};

// What one rank's channel did in [begin_us, end_us).
struct TracedStep {
  std::uint32_t rank = 0;
  std::uint16_t channel = 0;
  std::uint32_t step = 0;
  std::uint64_t tile = 0;
  double ready_us = 0;  // when it could have begun but for its inputs: it waited until begin_us
  double begin_us = 0;
  double end_us = 0;
};

struct SimulateResult {
  double time_us = 0;  // until the last rank is done
  SimulationModel model = SimulationModel::kSweep;
  std::uint64_t messages = 0;
  std::uint64_t tiles = 0;
  std::vector<LinkLoad> busiest{};  // at most kMostBusiest, the busiest first; empty where too many to add up
  std::uint64_t links_in_use = 0;   // that carry something; 0: none, or too many to add up
  std::vector<TracedStep> trace{};
};

// What the busiest link needs for all its bytes, where the sweep and the events, in which messages share no links, say
// that all is done sooner; else time_us.
inline double time_by_links_us(const SimulateResult& result) {
  const double most = result.busiest.empty() ? 0 : result.busiest.front().utilisation;
  return most > 1 ? most * result.time_us : result.time_us;
}

// What kAuto takes flows and events for: seconds of one core each.
inline constexpr std::uint64_t kMostFlows = 200'000;
inline constexpr std::uint64_t kMostEvents = 10'000'000;
inline constexpr std::size_t kMostBusiest = 10;
inline constexpr std::size_t kMostTraced = 1'000'000;  // steps; later ones are left out

// `bytes`: of one block of the call's buffers (plan/collective.h), as Lengths::count says it in elements: the whole
// message of an all_reduce, one rank's share of an all_gather.
//
// Errors: kInvalidArgument for options that do not fit the network; kPeerLost, naming rank and step, where a dead rank
// keeps others from ending; kUnsupported where the plan is too large for the model asked for, with what would do.
Result<SimulateResult> simulate(const Generator& generator, std::uint64_t bytes, const Network& network,
                                const Parameters& parameters, const SimulateOptions& options);

}  // namespace tutti
