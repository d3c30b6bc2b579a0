#include "tools/tune/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/collective_table.h"
#include "base/config.h"
#include "base/log.h"
#include "model/calibration.h"
#include "model/tuner.h"
#include "selection/algorithm_selector.h"
#include "selection/tuning.h"
#include "tools/sim/options.h"
#include "tools/sim/parameters.h"
#include "tools/sim/report.h"
#include "tools/sim/run.h"
#include "topology/host.h"

namespace tutti::tool {
namespace {

// Largest number of ranks for --explain with --shape or --xml, because the simulation of more ranks takes too long.
constexpr std::uint32_t kMostExplained = 512;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

std::string table(const std::vector<Prediction>& predictions, std::uint64_t slot_bytes, Algorithm chosen) {
  std::string text = fmt::format("  {:<20} {:<9} {:>9} {:>13} {:>13} {:>13}\n", "algorithm", "by", "chunk",
                                 "latency us", "bytes us", "total us");
  for (const Prediction& one : predictions) {
    const std::uint64_t chunk = one.candidate.chunk_bytes > 0 ? one.candidate.chunk_bytes : slot_bytes;
    text += fmt::format("{} {:<20} {:<9} {:>9} {:>13.2f} {:>13.2f} {:>13.2f}\n",
                        one.candidate.algorithm == chosen ? '*' : ' ', to_string(one.candidate.algorithm),
                        to_string(one.candidate.way),
                        one.candidate.way == ExecutionMethod::kByMessages ? fmt::format("{}", chunk) : "-",
                        one.latency_us, one.bandwidth_us, one.total_us());
  }
  return text;
}

// Returns the machine of each rank: the first ranks are on machine 0, and all machines have equally many ranks. Empty
// for one machine.
std::vector<std::uint32_t> nodes_of_ranks(std::uint32_t ranks, std::uint32_t machines) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t rank = 0; rank < ranks && machines > 1; ++rank) nodes.push_back(rank / (ranks / machines));
  return nodes;
}

std::string heading(const ExplainOptions& options, const Collective& collective, const std::string& where,
                    const Parameters& parameters) {
  const CollectiveRow& row = row_of(options.kind);
  const bool whole = block_count(row.input, collective.ranks) <= 1 && block_count(row.output, collective.ranks) <= 1;
  return fmt::format("{} of {} bytes{}, {} ranks on {} machine{}: {}\ncosts: {}{}\n\n", to_string(options.kind),
                     options.bytes, whole ? "" : " a block (one rank's part of the longer buffer)", collective.ranks,
                     options.machines, options.machines == 1 ? "" : "s", where, parameters.name,
                     parameters.source.empty() ? "" : ", " + parameters.source);
}

// Returns the reason why the library would select the algorithm of this call by a rule of thumb and not by
// predictions, or an empty text if it would use predictions.
std::string why_not_predicted(const SimTask& task) {
  if (!nodes_of(task.cluster.machine, NodeKind::kGpu).empty()) return "calls that GPUs carry out are not predicted";
  if (task.collective.ranks > kMostTunedRanks)
    return fmt::format("more than {} ranks are not predicted", kMostTunedRanks);
  return task.cluster.machines == 1 ? "all ranks share memory" : "";
}

// --explain for a shape or an XML file: the simulated times of `tutti sim` for that machine, and the algorithm that the
// library would select on it, if it would use a rule of thumb.
Result<std::string> explain_shape(const ExplainOptions& options) {
  SimArguments arguments{.collective = std::string(to_string(options.kind)),
                         .shape = options.shape,
                         .xml_path = options.xml_path,
                         .machines = options.machines,
                         .ranks = options.ranks / options.machines,
                         .bytes = "1G",
                         .parameters_path = options.parameters_path};
  Result<SimTask> task = resolve(arguments);
  if (!task) return task.error();
  const Collective& collective = task->collective;
  if (collective.ranks > kMostExplained) {
    return invalid(
        fmt::format("{} ranks: at most {} are explained; tutti sim takes more", collective.ranks, kMostExplained));
  }
  const bool blocks = task->block_bytes != task->bytes;
  arguments.bytes = std::to_string(blocks ? options.bytes * collective.ranks : options.bytes);
  task = resolve(arguments);
  if (!task) return task.error();
  const auto network = Network::create(task->cluster);
  if (!network) return network.error();
  const auto report = run_sim_task(*task, *network);
  if (!report) return report.error();
  const detail::SelectionQuery choice{.bytes = options.bytes, .attached = task->cluster.machines == 1};
  const std::string why = why_not_predicted(*task);
  const std::string runtime =
      why.empty()
          ? "it predicts by its own costs: run tutti tune --explain there"
          : fmt::format("{}, by rule of thumb: {}", to_string(detail::choose_algorithm(task->collective, choice)), why);
  return fmt::format("{}\nSimulated, as by tutti sim: {} is the quickest.\nThe runtime's choice there: {}.\n",
                     to_text(*task, *report), name_of(report->rows.front()), runtime);
}

Result<std::string> explain_here(const ExplainOptions& options) {
  auto config = parse_config(environment_variables());
  if (!config) return config.error();
  const HostTopology host = discover_host();
  auto own = detail::own_tuning(*config, host.cpu_limit, Log(LogLevel::kWarn, -1));
  if (!own) return own.error();
  detail::Tuning& tuning = *own;
  if (!options.parameters_path.empty()) {
    auto loaded = read_parameters(options.parameters_path);
    if (!loaded) return loaded.error();
    tuning.parameters = *std::move(loaded);
    tuning.parameters.cores = host.cpu_limit;
  }
  const std::uint32_t ranks = options.ranks == 0 ? 2 * options.machines : options.ranks;
  Collective collective{.kind = options.kind, .ranks = ranks};
  collective.nodes = nodes_of_ranks(ranks, options.machines);
  const bool alone = options.machines == 1 && !options.tcp;
  const std::uint32_t cores = cores_of({host.cpus}, 0);
  detail::AlgorithmSelector selector(
      {.tuning = std::make_shared<const detail::Tuning>(tuning),  // a shared_ptr, because communicators share one
       .ranks = ranks,
       .nodes = collective.nodes,
       .cores = cores,
       .choices = choices_for(tuning.parameters.choices, ranks, cores),
       .memory = !options.tcp,
       .mailboxes = alone,
       .attachment = alone ? Attachment::kLongCalls : Attachment::kNone,
       .slots = config->slots,
       .slot_bytes = config->slot_bytes_or(kSlotBytes)});
  const detail::SelectionQuery choice{.bytes = options.bytes, .attached = true};
  const auto decision = selector.explain(collective, choice);
  const std::uint64_t rounded_up_bytes = detail::AlgorithmSelector::rounded_up_bytes(options.bytes);
  std::string text = heading(options, collective, options.tcp ? "this one, by TCP" : "this one", tuning.parameters);
  if (options.parameters_path.empty()) {
    const std::string path = calibration_path(config->tune_file, process_environment());
    const bool used = tuning.measured || !tuning.parameters.choices.empty();
    text += used ? fmt::format("file: {}\n\n", path) : "file: none\n\n";
  }
  if (!tuning.measured && options.parameters_path.empty())
    text += "The costs of this machine have not been measured: run tutti tune.\n\n";
  if (decision.predictions.empty()) text += "The tuner predicts nothing for these ranks and costs.\n";
  if (rounded_up_bytes != options.bytes)
    text += fmt::format("{} as a call of {} bytes.\n\n",
                        selector.shares_memory() ? "Predicted" : "Decided and predicted", rounded_up_bytes);
  const std::string chunk = decision.chunk_bytes > 0 ? fmt::format(" in chunks of {}", decision.chunk_bytes) : "";
  text += "What the runtime predicts and chooses for host memory; calls that GPUs carry out go by rules of thumb.\n\n";
  return text + table(decision.predictions, config->slot_bytes_or(kSlotBytes), decision.algorithm) +
         fmt::format("\n{}{}: {}\n", to_string(decision.algorithm), chunk, decision.reason);
}

}  // namespace

Result<std::string> explain(const ExplainOptions& options) {
  if (options.machines == 0 || options.ranks % options.machines != 0) {
    return invalid(fmt::format("{} ranks cannot be dealt to {} machines equally", options.ranks, options.machines));
  }
  return options.shape.empty() && options.xml_path.empty() ? explain_here(options) : explain_shape(options);
}

}  // namespace tutti::tool
