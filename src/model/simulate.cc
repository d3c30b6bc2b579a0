// Checks the options, selects the model, and runs it.
#include "model/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "model/costs.h"
#include "model/events.h"
#include "model/link_loads.h"
#include "model/programs.h"
#include "model/sweep.h"
#include "plan/tiling.h"

namespace tutti {
namespace {

Error refusal(ErrorCode code, std::string message) {
  return {.code = code, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

// Divides a call into tiles and chunks as the runtime does (plan/tiling.h, plan/layout.h), except that all chunks
// of a tile are equally long. `copies` is the number of copies of the plan; the result is for one copy's share of
// the bytes.
TileCounts cut(std::uint64_t bytes, std::uint32_t copies, const PlanShape& shape, std::uint64_t slot_bytes) {
  const std::uint64_t share = (bytes + copies - 1) / copies;
  const std::uint32_t chunks = shape.chunks;
  const std::uint64_t longest = std::clamp<std::uint64_t>(slot_bytes / 64 * 64, 64, std::uint64_t{1} << 36);
  const Tiling tiling(share, 1, chunks, longest_chunk_bytes(longest, shape.longest_run, 1));
  if (tiling.tiles() <= 1) {
    return {.full = 1, .full_bytes = static_cast<double>(bytes) / copies / chunks};
  }
  const Extent end = tiling.extent(0, chunks - 1);
  const std::uint64_t tile_bytes = end.offset + end.count;
  const std::uint64_t full = share / tile_bytes;
  const std::uint64_t rest = share - full * tile_bytes;
  return {.full = full,
          .full_bytes = static_cast<double>(tile_bytes) / chunks,
          .last = rest > 0 ? 1u : 0u,
          .last_bytes = static_cast<double>(rest) / chunks};
}

// limit on Straggler::factor
constexpr double kMostFactor = 1e6;

Status check(const Generator& generator, const Network& network, const Parameters& parameters,
             const SimulateOptions& options) {
  const std::uint32_t ranks = generator.shape.collective.ranks;
  if (ranks != network.ranks()) {
    return refusal(ErrorCode::kInvalidArgument,
                   fmt::format("the plan has {} ranks, the network {}", ranks, network.ranks()));
  }
  for (const Straggler& each : options.stragglers) {
    if (each.rank >= ranks || !(each.factor >= 1 && each.factor <= kMostFactor)) {
      return refusal(ErrorCode::kInvalidArgument,
                     fmt::format("straggler {}:{:g}: there are ranks 0 to {}, and a factor is 1 to {:g}", each.rank,
                                 each.factor, ranks - 1, kMostFactor));
    }
  }
  for (const std::uint32_t rank : options.dead_ranks) {
    if (rank < ranks) continue;
    return refusal(ErrorCode::kInvalidArgument, fmt::format("dead rank {}: there are ranks 0 to {}", rank, ranks - 1));
  }
  if (!(options.jitter >= 0) || options.jitter > 1000) {
    return refusal(ErrorCode::kInvalidArgument, fmt::format("jitter {}: at least 0, at most 1000", options.jitter));
  }
  const std::uint32_t channels = options.channels == 0 ? parameters.channels : options.channels;
  if (channels == 0 || channels > 1024 || parameters.slots == 0 || parameters.slot_bytes == 0) {
    return refusal(ErrorCode::kInvalidArgument,
                   fmt::format("{} channels, {} slots of {} bytes: at least 1 of each, at most 1024 channels", channels,
                               parameters.slots, parameters.slot_bytes));
  }
  return {};
}

CostOptions cost_options(const Parameters& parameters, const SimulateOptions& options) {
  CostOptions costs{.protocol = options.protocol,
                    .channels = options.channels == 0 ? parameters.channels : options.channels};
  for (const Straggler& each : options.stragglers) {
    if (each.factor == 1) continue;
    double& factor = costs.factors.try_emplace(each.rank, 1).first->second;
    factor = std::max(factor, each.factor);
  }
  return costs;
}

// Returns the number of places of a class that must be simulated. Let P be the least common multiple of the plan's
// period (`classes`) and the network's. Adding P to all ranks changes neither the plan nor the network, so rank r +
// P always does the same as rank r at the same time. Therefore P / classes places are enough. If there are
// stragglers, all places must be simulated.
std::uint32_t different_places(std::uint32_t classes, const Network& network, const Parameters& parameters,
                               const CostOptions& options) {
  if (!options.factors.empty()) return network.ranks() / classes;
  const auto cost = [&](Level level) {
    const MessageCost& wanted = parameters.cost(level, options.protocol);
    return wanted.gbytes_per_s > 0 ? wanted : parameters.cost(level, Protocol::kSimple);
  };
  const std::uint32_t period =
      cost(Level::kNic) == cost(Level::kSpine) ? network.period_of_machines() : network.period();
  const std::uint64_t both = std::lcm(std::uint64_t{classes}, std::uint64_t{period});
  return static_cast<std::uint32_t>(both / classes);
}

Result<double> sweep(const Programs& programs, const Network& network, const Parameters& parameters,
                     const CostOptions& cost_options, const TileCounts& tiles, const Progress& progress) {
  const std::uint32_t places = different_places(programs.classes, network, parameters, cost_options);
  Result<Costs> costs = Costs::create(programs, network, parameters, cost_options, places);
  if (!costs.ok()) return std::move(costs).error();
  const std::uint32_t slots = std::max(programs.slots, parameters.slots);
  std::unique_ptr<TileRunner> runner = make_ring_sweep(programs, *costs, slots);
  if (runner == nullptr) {
    Result<std::unique_ptr<TileRunner>> any = make_sweep(programs, *costs, slots);
    if (!any.ok()) return std::move(any).error();
    runner = *std::move(any);
  }
  return run_tiles(*runner, *costs, tiles, true, progress);
}

bool needs_events(const SimulateOptions& options) {
  return options.jitter > 0 || !options.dead_ranks.empty() || options.traced_ranks > 0;
}

Result<SimulationModel> choose(const Programs& programs, std::uint64_t tiles, const Parameters& parameters,
                               const SimulateOptions& options, const LinkCounts& counts) {
  // If the user requests a model, the plan may have this many times as many messages or steps as kAuto allows for it.
  constexpr std::uint64_t kBearable = 10;
  const double steps = static_cast<double>(programs.steps.size()) * programs.places() * static_cast<double>(tiles);
  const double messages = static_cast<double>(programs.messages_of_tile()) * static_cast<double>(tiles);
  const bool may_flow = !counts.all.empty() && parameters.cores == 0;
  const auto too_large = [&](std::string_view what, std::string_view instead) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} messages in {} steps are too many for {}; choose fewer ranks or bytes, or {}",
                               messages, steps, what, instead));
  };
  switch (options.model) {
    case SimulationModel::kSweep:
      if (needs_events(options)) {
        return refusal(ErrorCode::kInvalidArgument, "jitter, dead ranks and time lines need the model events or flows");
      }
      return SimulationModel::kSweep;
    case SimulationModel::kEvents:
      if (steps > kBearable * kMostEvents) return too_large("the model events", "the model sweep");
      return SimulationModel::kEvents;
    case SimulationModel::kFlows:
      if (parameters.cores > 0) {
        return refusal(ErrorCode::kInvalidArgument,
                       "the model flows knows no cores that ranks share; set cores to 0, or choose events");
      }
      if (counts.all.empty()) {
        return refusal(ErrorCode::kUnsupported,
                       "the model flows divides links among messages, but this network has no links, or the plan has "
                       "too many connections to find the links of each: choose the model events");
      }
      if (messages > kBearable * kMostFlows) return too_large("the model flows", "the model events");
      return SimulationModel::kFlows;
    case SimulationModel::kAuto: break;
  }
  if (may_flow && messages <= kMostFlows) return SimulationModel::kFlows;
  if (steps <= kMostEvents) return SimulationModel::kEvents;
  if (needs_events(options)) return too_large("jitter, dead ranks and time lines", "leave these out");
  return SimulationModel::kSweep;
}

// If the sweep will be used, and will need too much memory (check_size()), judging by the plan of rank 0, returns its
// error. Only the plan of rank 0 is needed for that, so the plans of the other ranks are not built in vain. Does so
// only for hierarchical plans on machines of equal size, because their ranks have programs of similar length. For other
// plans, rank 0's program may be the longest, so the size is checked later.
Status look_ahead(const RankPlan& first, std::uint32_t classes, const Generator& generator, const Network& network,
                  const Parameters& parameters, const SimulateOptions& options, const CostOptions& costs,
                  std::uint64_t tiles) {
  if (generator.shape.algorithm != Algorithm::kHierarchical || classes == network.ranks()) return {};
  SweepSize size{.classes = classes, .places = different_places(classes, network, parameters, costs)};
  double steps = 0, messages = 0;
  // The steps for which other channels wait: the number of the channel in the upper 32 bits, and of the step in the
  // lower 32 bits. A step counts only once in size.marks, even if several steps wait for it.
  std::vector<std::uint64_t> marks;
  for (const Channel& channel : first.channels) {
    size.threads += channel.steps.empty() ? 0 : 1;
    steps += static_cast<double>(channel.steps.size());
    for (const Port& port : channel.ports) size.connections += port.direction == Direction::kSend ? 1 : 0;
    for (const Step& step : channel.steps) messages += step.send_count;
    for (const After& after : channel.after) {
      marks.push_back(std::uint64_t{after.other_channel} << 32 | after.other_step);
    }
  }
  std::sort(marks.begin(), marks.end());
  size.marks = static_cast<double>(std::unique(marks.begin(), marks.end()) - marks.begin());
  const double all = network.ranks() * static_cast<double>(tiles);
  const bool sweeps = options.model == SimulationModel::kSweep ||
                      (options.model == SimulationModel::kAuto && steps * all > 2.0 * kMostEvents &&
                       messages * all > 2.0 * kMostFlows && !needs_events(options));
  return sweeps ? check_size(size, std::max<std::uint32_t>(generator.shape.slots, parameters.slots)) : Status();
}

}  // namespace

Result<SimulateResult> simulate(const Generator& generator, std::uint64_t bytes, const Network& network,
                                const Parameters& parameters, const SimulateOptions& options) {
  TUTTI_TRY(check(generator, network, parameters, options));
  std::optional<Network> broken;
  if (!options.dead_links.empty()) {
    Result<Network> without = network.without(options.dead_links);
    if (!without.ok()) return std::move(without).error();
    broken = *std::move(without);
  }
  const Network& net = broken ? *broken : network;
  const CostOptions costs = cost_options(parameters, options);
  const TileCounts tiles = cut(bytes, costs.channels, generator.shape, parameters.slot_bytes);
  const Result<Programs> programs = make_programs(generator, [&](const RankPlan& first, std::uint32_t classes) {
    return look_ahead(first, classes, generator, net, parameters, options, costs, tiles.full + tiles.last);
  });
  if (!programs.ok()) return programs.error();
  SimulateResult result;
  result.tiles = tiles.full + tiles.last;
  result.messages = programs->messages_of_tile() * result.tiles * costs.channels;
  const LinkCounts counts = count_on_links(*programs, net, costs.channels);
  const Result<SimulationModel> model = choose(*programs, result.tiles, parameters, options, counts);
  if (!model.ok()) return model.error();
  result.model = *model;
  if (*model == SimulationModel::kSweep) {
    const Result<double> time = sweep(*programs, net, parameters, costs, tiles, options.progress);
    if (!time.ok()) return time.error();
    result.time_us = *time;
  } else {
    Result<Costs> all = Costs::create(*programs, net, parameters, costs, programs->places());
    if (!all.ok()) return std::move(all).error();
    const bool flows = *model == SimulationModel::kFlows;
    Result<EventResult> run = run_events({.programs = *programs,
                                          .costs = *all,
                                          .network = net,
                                          .parameters = parameters,
                                          .options = options,
                                          .tiles = tiles,
                                          .links = flows ? &counts : nullptr});
    if (!run.ok()) return std::move(run).error();
    result.time_us = run->time_us;
    result.trace = std::move(run->trace);
  }
  result.time_us += parameters.launch_us;
  const double bytes_per_chunk =
      static_cast<double>(tiles.full) * tiles.full_bytes + static_cast<double>(tiles.last) * tiles.last_bytes;
  result.busiest = busiest_links(counts, net, bytes_per_chunk, result.time_us);
  result.links_in_use = static_cast<std::uint64_t>(
      std::count_if(counts.all.begin(), counts.all.end(), [](double chunks) { return chunks > 0; }));
  return result;
}

}  // namespace tutti
