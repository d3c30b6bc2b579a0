#include "tools/sim/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "plan/collective.h"
#include "tools/common/messages.h"
#include "tools/perf/options.h"
#include "tools/sim/machine_file.h"
#include "tools/sim/parameters.h"
#include "tools/topo/graph.h"

namespace tutti::tool {
namespace {

constexpr SimulationModel kModels[] = {SimulationModel::kAuto, SimulationModel::kSweep, SimulationModel::kEvents,
                                       SimulationModel::kFlows};
constexpr Protocol kProtocolsByName[] = {Protocol::kSimple, Protocol::kLl, Protocol::kLl128, Protocol::kWindow};

Error invalid(std::string message) { return Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message)}; }

// Finds the value with the name `text`, the argument of the option `option`. `another` is one more word that the option
// accepts. The caller has handled it before, so it is only listed in the error message. Empty: there is none.
template <class Value, std::size_t kCount>
Result<Value> by_name(std::string_view option, const std::string& text, const Value (&values)[kCount],
                      std::string_view another = {}) {
  std::vector<std::string_view> names;
  for (const Value value : values) {
    if (to_string(value) == text) return value;
    names.push_back(to_string(value));
  }
  if (!another.empty()) names.push_back(another);
  return wrong_option(option, not_one_of(text, names));
}

// Parses "RANK:FACTOR", for example "3:2.5".
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
  if (!kind || !has_plan(*kind)) {
    std::vector<std::string_view> names;
    for (const CollectiveKind each : all_collectives()) names.push_back(to_string(each));
    return wrong_option("collective", not_one_of(arguments.collective, names));
  }
  Collective& collective = task.collective;
  collective.kind = *kind;
  if (std::uint64_t{task.cluster.machines} * task.cluster.ranks_per_machine > kMostRanks) {
    return invalid(fmt::format("{} machines of {} ranks: at most {} ranks are simulated", task.cluster.machines,
                               task.cluster.ranks_per_machine, kMostRanks));
  }
  collective.ranks = task.cluster.ranks();
  if (arguments.root < 0 || static_cast<std::uint32_t>(arguments.root) >= collective.ranks) {
    return wrong_option("--root", not_a_number(std::to_string(arguments.root), 0, collective.ranks - 1));
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
      return wrong_option("--algorithm", not_one_of(arguments.algorithm, names));
    }
  }
  const std::optional<std::uint64_t> bytes = parse_size(arguments.bytes);
  if (!bytes) return wrong_option("--bytes", not_a_size(arguments.bytes));
  const bool blocks =
      std::max(input_blocks(collective, collective.root).count, output_blocks(collective, collective.root).count) > 1;
  task.block_bytes = !has_data(*kind) ? 0 : blocks ? *bytes / collective.ranks : *bytes;
  task.bytes = blocks ? task.block_bytes * collective.ranks : task.block_bytes;
  if (task.bytes == 0 && has_data(*kind)) {
    return invalid(fmt::format("--bytes {}: {} of {} ranks takes at least {}", arguments.bytes, to_string(*kind),
                               collective.ranks, blocks ? collective.ranks : 1));
  }
  return {};
}

// If the compute capability of none of a machine's GPUs is known, this one is used to select default parameters.
constexpr std::int32_t kFallbackCapability = 80;

// Sets task.parameters: those of the file of --parameters, or otherwise the defaults. These are the defaults for the
// highest compute capability among the machine's GPUs (kFallbackCapability if none is known), or those of a host if the
// machine has no GPUs.
Status resolve_parameters(const SimArguments& arguments, SimTask& task) {
  if (!arguments.parameters_path.empty()) {
    Result<Parameters> parameters = read_parameters(arguments.parameters_path);
    TUTTI_TRY(parameters);
    task.parameters = *std::move(parameters);
    return {};
  }
  const std::vector<std::uint32_t> gpus = nodes_of(task.cluster.machine, NodeKind::kGpu);
  std::int32_t capability = 0;
  for (const std::uint32_t node : gpus) {
    const GpuInfo& gpu = task.cluster.machine.nodes[node].gpu;
    // If the name of the GCN architecture is set, this is an AMD GPU, and `capability` is not a compute capability.
    if (gpu.gcn.empty()) capability = std::max(capability, gpu.capability);
  }
  if (!gpus.empty() && capability == 0) {
    task.parameters_notes = fmt::format("the GPUs' kind has no defaults: those of sm_{} stand in", kFallbackCapability);
    capability = kFallbackCapability;
  }
  task.parameters = gpus.empty() ? default_host_parameters(0) : default_gpu_parameters(capability);
  return {};
}

// Returns the NICs of a machine as a text, for example "2 NICs of 200 Gbit/s" or "no NIC".
std::string nics_text(const Graph& machine) {
  std::map<double, std::uint32_t> nics;  // number of NICs, indexed by speed in Mbit/s
  for (const std::uint32_t node : nodes_of(machine, NodeKind::kNic)) ++nics[machine.nodes[node].nic.megabits_per_s];
  if (nics.empty()) return "no NIC";
  std::string text;
  for (const auto& [speed, count] : nics) {
    text += fmt::format("{}{} NIC{} ", text.empty() ? "" : ", ", count, count == 1 ? "" : "s");
    text += speed > 0 ? fmt::format("of {:g} Gbit/s", speed / 1000) : "of no known speed (not used)";
  }
  return text;
}

Status resolve_machine(const SimArguments& arguments, SimTask& task) {
  if (!arguments.shape.empty() && !arguments.xml_path.empty()) {
    return invalid(fmt::format("--shape {} and --xml {} are two machines: leave one of them out", arguments.shape,
                               arguments.xml_path));
  }
  ShapeOptions options{.name = arguments.shape.empty() ? "dgx-h100" : arguments.shape,
                       .machines = arguments.machines,
                       .nics = arguments.nics,
                       .ranks = arguments.ranks,
                       .fabric = arguments.fabric,
                       .oversubscription = arguments.oversubscription,
                       .machines_per_leaf = arguments.machines_per_leaf};
  if (arguments.xml_path.empty()) {
    Result<Cluster> cluster = make_shape(options);
    TUTTI_TRY(cluster);
    task.cluster = *std::move(cluster);
    task.machine = "shape " + options.name;
  } else {
    const Result<MachineFile> file = read_machine_file(arguments.xml_path);
    TUTTI_TRY(file);
    Result<Cluster> cluster = make_cluster(file->machine, options);
    TUTTI_TRY(cluster);
    task.cluster = *std::move(cluster);
    task.machine = "file " + arguments.xml_path;
    if (file->warnings > 0) {
      task.machine += fmt::format(" ({} warnings: tutti topo --xml {})", file->warnings, arguments.xml_path);
    }
  }
  const Graph& machine = task.cluster.machine;
  task.machine += fmt::format(": {}; {}; used are one rank for each {}, links with their bandwidths, and NICs",
                              parts_text(machine), nics_text(machine),
                              !nodes_of(machine, NodeKind::kGpu).empty() ? "GPU"
                              : arguments.ranks > 0                      ? "place asked for"
                                                                         : "CPU");
  return {};
}

Status resolve_options(const SimArguments& arguments, SimTask& task) {
  SimulateOptions& options = task.options;
  const Result<SimulationModel> model = by_name("--model", arguments.model, kModels);
  if (!model.ok()) return model.error();
  options.model = *model;
  if (arguments.protocol == "best") {
    for (const Protocol protocol : kProtocolsByName) task.protocols.push_back(protocol);
  } else {
    const Result<Protocol> protocol = by_name("--protocol", arguments.protocol, kProtocolsByName, "best");
    if (!protocol.ok()) return protocol.error();
    task.protocols.push_back(*protocol);
  }
  if (!arguments.slot_bytes.empty()) {
    const Result<std::uint64_t> bytes = parse_slot_bytes(arguments.slot_bytes);
    if (!bytes) return bytes.error();
    task.parameters.slot_bytes = *bytes;
  }
  task.in_switch = arguments.in_switch;
  if (task.in_switch &&
      (task.collective.kind != CollectiveKind::kAllReduce || task.parameters.switch_gbytes_per_s <= 0)) {
    return invalid(
        "--in-switch: needs all_reduce and machines whose switch can add (switch_gbytes_per_s of the parameters)");
  }
  if (task.in_switch && (!arguments.stragglers.empty() || !arguments.dead_ranks.empty() ||
                         !arguments.dead_links.empty() || arguments.jitter != 0)) {
    return invalid("--in-switch: is a formula without stragglers, deaths or jitter");
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
  if (root_dead)
    return invalid(
        fmt::format("--dead-rank {}: is the root, so no rank would complete the call", task.collective.root));
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
  TUTTI_TRY(resolve_machine(arguments, task));
  TUTTI_TRY(resolve_parameters(arguments, task));
  TUTTI_TRY(resolve_collective(arguments, task));
  TUTTI_TRY(resolve_options(arguments, task));
  return task;
}

}  // namespace tutti::tool
