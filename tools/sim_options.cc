#include "tools/sim_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "plan/collective.h"
#include "tools/perf_options.h"

namespace tutti::tool {
namespace {

constexpr SimulationModel kModels[] = {SimulationModel::kAuto, SimulationModel::kSweep, SimulationModel::kEvents,
                                       SimulationModel::kFlows};
constexpr Protocol kProtocolsByName[] = {Protocol::kSimple, Protocol::kLl, Protocol::kLl128, Protocol::kWindow};

Error invalid(std::string message) { return Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message)}; }

template <class Value, std::size_t kCount>
Result<Value> by_name(std::string_view option, const std::string& text, const Value (&values)[kCount]) {
  std::vector<std::string_view> names;
  for (const Value value : values) {
    if (to_string(value) == text) return value;
    names.push_back(to_string(value));
  }
  return invalid(fmt::format("{} {}: unknown; one of {}", option, text, fmt::join(names, ", ")));
}

// "3:2.5"
Result<Straggler> parse_straggler(const std::string& text) {
  Straggler straggler;
  const char* const end = text.data() + text.size();
  const auto [colon, rank_error] = std::from_chars(text.data(), end, straggler.rank);
  if (rank_error == std::errc() && colon != end && *colon == ':') {
    const auto [rest, factor_error] = std::from_chars(colon + 1, end, straggler.factor);
    if (factor_error == std::errc() && rest == end) return straggler;
  }
  return invalid(fmt::format("--straggler {}: write RANK:FACTOR, as 3:2.5", text));
}

constexpr std::uint64_t kMostRanks = 1u << 22;

Status resolve_collective(const SimArguments& arguments, SimTask& task) {
  const std::optional<CollectiveKind> kind = parse_collective(arguments.collective);
  if (!kind || *kind == CollectiveKind::kSendReceive) {
    std::vector<std::string_view> names;
    for (const CollectiveKind each : all_collectives()) names.push_back(to_string(each));
    return invalid(fmt::format("\"{}\": unknown collective; one of {}", arguments.collective, fmt::join(names, ", ")));
  }
  Collective& collective = task.collective;
  collective.kind = *kind;
  if (std::uint64_t{task.cluster.machines} * task.cluster.ranks_per_machine > kMostRanks) {
    return invalid(fmt::format("{} machines of {} ranks: at most {} ranks are simulated", task.cluster.machines,
                               task.cluster.ranks_per_machine, kMostRanks));
  }
  collective.ranks = task.cluster.ranks();
  if (arguments.root < 0 || static_cast<std::uint32_t>(arguments.root) >= collective.ranks) {
    return invalid(fmt::format("--root {}: there are ranks 0 to {}", arguments.root, collective.ranks - 1));
  }
  if (has_root(*kind)) collective.root = static_cast<std::uint32_t>(arguments.root);
  for (std::uint32_t rank = 0; task.cluster.machines > 1 && rank < collective.ranks; ++rank) {
    collective.nodes.push_back(rank / task.cluster.ranks_per_machine);
  }
  if (!arguments.algorithm.empty() && arguments.algorithm != "auto") {
    task.algorithm = parse_algorithm(arguments.algorithm);
    const std::vector<Algorithm> known = algorithms_of(*kind);
    if (!task.algorithm || std::find(known.begin(), known.end(), *task.algorithm) == known.end()) {
      std::vector<std::string_view> names;
      for (const Algorithm each : known) names.push_back(to_string(each));
      return invalid(fmt::format("--algorithm {}: not one for {}; it has {}", arguments.algorithm, to_string(*kind),
                                 fmt::join(names, ", ")));
    }
  }
  const std::optional<std::uint64_t> bytes = parse_size(arguments.bytes);
  if (!bytes) {
    return invalid(
        fmt::format("--bytes {}: not a size; write bytes like 8, 4K, 64M, 1G (at most 1024G)", arguments.bytes));
  }
  const bool blocks =
      std::max(input_blocks(collective, collective.root).count, output_blocks(collective, collective.root).count) > 1;
  task.block_bytes = *kind == CollectiveKind::kBarrier ? 0 : blocks ? *bytes / collective.ranks : *bytes;
  task.bytes = blocks ? task.block_bytes * collective.ranks : task.block_bytes;
  return {};
}

// The defaults of the machine's newest GPU, or of its processors.
Result<Parameters> parameters_for(const SimArguments& arguments, const Cluster& cluster) {
  if (!arguments.parameters_path.empty()) return load_parameters(arguments.parameters_path);
  std::int32_t capability = 0;
  for (const std::uint32_t node : nodes_of(cluster.machine, NodeKind::kGpu)) {
    capability = std::max(capability, cluster.machine.nodes[node].gpu.capability);
  }
  return capability > 0 ? default_gpu_parameters(capability) : default_host_parameters(0);
}

Status resolve_options(const SimArguments& arguments, SimTask& task) {
  SimulateOptions& options = task.options;
  const Result<SimulationModel> model = by_name("--model", arguments.model, kModels);
  if (!model.ok()) return model.error();
  options.model = *model;
  if (arguments.protocol == "best") {
    for (const Protocol protocol : kProtocolsByName) task.protocols.push_back(protocol);
  } else {
    const Result<Protocol> protocol = by_name("--protocol", arguments.protocol, kProtocolsByName);
    if (!protocol.ok()) return protocol.error();
    task.protocols.push_back(*protocol);
  }
  if (!arguments.slot_bytes.empty()) {
    const std::optional<std::uint64_t> bytes = parse_size(arguments.slot_bytes);
    if (!bytes || *bytes < 64) {
      return invalid(fmt::format("--slot-bytes {}: not a size from 64 on, like 8K or 1M", arguments.slot_bytes));
    }
    task.parameters.slot_bytes = *bytes;
  }
  task.in_switch = arguments.in_switch;
  if (task.in_switch &&
      (task.collective.kind != CollectiveKind::kAllReduce || task.parameters.switch_gbytes_per_s <= 0)) {
    return invalid(
        "--in-switch: is for all_reduce on machines whose switch adds (switch_gbytes_per_s of the parameters)");
  }
  if (task.in_switch && (!arguments.stragglers.empty() || !arguments.dead_ranks.empty() ||
                         !arguments.dead_links.empty() || arguments.jitter != 0)) {
    return invalid("--in-switch: is a formula that knows no stragglers, deaths or jitter");
  }
  options.channels = arguments.channels;
  for (const std::string& each : arguments.stragglers) {
    const Result<Straggler> straggler = parse_straggler(each);
    if (!straggler.ok()) return straggler.error();
    options.stragglers.push_back(*straggler);
  }
  options.dead_ranks = arguments.dead_ranks;
  const bool root_dead = has_root(task.collective.kind) &&
                         std::count(options.dead_ranks.begin(), options.dead_ranks.end(), task.collective.root) > 0;
  if (root_dead) return invalid(fmt::format("--dead-rank {}: is the root: nobody would end", task.collective.root));
  if (std::set(options.dead_ranks.begin(), options.dead_ranks.end()).size() >= task.collective.ranks) {
    return invalid("--dead-rank: all ranks are dead");
  }
  options.dead_links = arguments.dead_links;
  options.jitter = arguments.jitter;
  options.seed = arguments.seed;
  return {};
}

}  // namespace

std::string_view to_string(SimulationModel model) {
  switch (model) {
    case SimulationModel::kAuto: return "auto";
    case SimulationModel::kSweep: return "sweep";
    case SimulationModel::kEvents: return "events";
    case SimulationModel::kFlows: return "flows";
  }
  return "invalid";
}

Result<SimTask> resolve(const SimArguments& arguments) {
  SimTask task;
  Result<Cluster> cluster = make_shape({.name = arguments.shape,
                                        .machines = arguments.machines,
                                        .nics = arguments.nics,
                                        .ranks = arguments.ranks,
                                        .fabric = arguments.fabric,
                                        .oversubscription = arguments.oversubscription,
                                        .machines_per_leaf = arguments.machines_per_leaf});
  if (!cluster.ok()) return std::move(cluster).error();
  task.cluster = *std::move(cluster);
  Result<Parameters> parameters = parameters_for(arguments, task.cluster);
  if (!parameters.ok()) return std::move(parameters).error();
  task.parameters = *std::move(parameters);
  TUTTI_TRY(resolve_collective(arguments, task));
  TUTTI_TRY(resolve_options(arguments, task));
  return task;
}

}  // namespace tutti::tool
