#include "tools/tune_explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/config.h"
#include "base/log.h"
#include "model/tuner.h"
#include "runtime/choose.h"
#include "runtime/tuning.h"
#include "topology/cluster.h"
#include "topology/host.h"

namespace tutti::tool {
namespace {

constexpr std::uint32_t kMostExplained = 512;  // ranks: seconds of simulation

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

std::string table(const std::vector<Prediction>& predictions, std::uint64_t slot_bytes, Algorithm chosen) {
  std::string text = fmt::format("  {:<20} {:<9} {:>9} {:>13} {:>13} {:>13}\n", "algorithm", "by", "chunk",
                                 "latency us", "bytes us", "total us");
  for (const Prediction& one : predictions) {
    const std::uint64_t chunk = one.contender.chunk_bytes > 0 ? one.contender.chunk_bytes : slot_bytes;
    text += fmt::format("{} {:<20} {:<9} {:>9} {:>13.2f} {:>13.2f} {:>13.2f}\n",
                        one.contender.algorithm == chosen ? '*' : ' ', to_string(one.contender.algorithm),
                        to_string(one.contender.way),
                        one.contender.way == Way::kByMessages ? fmt::format("{}", chunk) : "-", one.latency_us,
                        one.bandwidth_us, one.total_us());
  }
  return text;
}

std::vector<std::uint32_t> dealt(std::uint32_t ranks, std::uint32_t machines) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t rank = 0; rank < ranks && machines > 1; ++rank) nodes.push_back(rank / (ranks / machines));
  return nodes;
}

std::string heading(const ExplainOptions& options, const Collective& collective, const std::string& where,
                    const Parameters& parameters) {
  return fmt::format("{} of {} bytes a block, {} ranks on {} machine{}: {}\ncosts: {}{}\n\n", to_string(options.kind),
                     options.bytes, collective.ranks, options.machines, options.machines == 1 ? "" : "s", where,
                     parameters.name, parameters.source.empty() ? "" : ", " + parameters.source);
}

// What a shape's costs are where no file says so: by its GPUs.
Parameters parameters_of(const Cluster& cluster) {
  const std::vector<std::uint32_t> gpus = nodes_of(cluster.machine, NodeKind::kGpu);
  if (gpus.empty()) return default_host_parameters(cluster.ranks_per_machine);
  return default_gpu_parameters(std::max(cluster.machine.nodes[gpus.front()].gpu.capability, 80));
}

Result<std::string> explain_shape(const ExplainOptions& options) {
  const std::uint32_t ranks_each = options.ranks / options.machines;
  auto cluster = make_shape({.name = options.shape, .machines = options.machines, .ranks = ranks_each});
  if (!cluster) return cluster.error();
  Parameters parameters = parameters_of(*cluster);
  if (!options.parameters_path.empty()) {
    auto loaded = load_parameters(options.parameters_path);
    if (!loaded) return loaded.error();
    parameters = *std::move(loaded);
  }
  auto network = Network::create(*cluster);
  if (!network) return network.error();
  if (cluster->ranks() > kMostExplained) {
    return invalid(
        fmt::format("{} ranks: at most {} are explained; tutti sim takes more", cluster->ranks(), kMostExplained));
  }
  auto tuner = Tuner::create(parameters, *network);
  if (!tuner) return tuner.error();
  Collective collective{.kind = options.kind, .ranks = cluster->ranks()};
  collective.nodes = dealt(cluster->ranks(), options.machines);
  std::vector<Contender> contenders;
  for (const Algorithm one : algorithms_of(options.kind)) contenders.push_back({.algorithm = one});
  const auto predictions = tuner->predict_all(collective, options.bytes, contenders);
  if (predictions.empty()) return invalid("no algorithm of this collective can be predicted there");
  const Algorithm best = predictions.front().contender.algorithm;
  return heading(options, collective, options.shape, parameters) + table(predictions, parameters.slot_bytes, best) +
         fmt::format("\n{}: predicted to be the quickest\n", to_string(best));
}

Result<std::string> explain_here(const ExplainOptions& options) {
  auto config = parse_config(environment_variables());
  if (!config) return config.error();
  if (const auto rules = parse_overrides(config->tune, config->slot_bytes); !rules) return rules.error();
  const HostTopology host = discover_host();
  auto tuning = detail::own_tuning(*config, host.cpu_limit, Log(LogLevel::kWarn, -1));
  if (!options.parameters_path.empty()) {
    auto loaded = load_parameters(options.parameters_path);
    if (!loaded) return loaded.error();
    tuning.parameters = *std::move(loaded);
    tuning.parameters.cores = host.cpu_limit;
  }
  const std::uint32_t ranks = options.ranks == 0 ? 2 * options.machines : options.ranks;
  Collective collective{.kind = options.kind, .ranks = ranks};
  collective.nodes = dealt(ranks, options.machines);
  const bool alone = options.machines == 1 && !options.tcp;
  detail::Chooser chooser({.tuning = std::make_shared<const detail::Tuning>(tuning),  // shared as in a fabric
                           .ranks = ranks,
                           .nodes = collective.nodes,
                           .cores = cores_of({host.cpus}, 0),
                           .memory = !options.tcp,
                           .slates = alone,
                           .attachment = alone ? Attachment::kLongCalls : Attachment::kNone,
                           .slots = config->slots,
                           .slot_bytes = config->slot_bytes});
  const detail::Choice choice{.bytes = options.bytes, .attached = true};
  const auto decision = chooser.explain(collective, choice);
  const std::uint64_t decided_as = detail::Chooser::decided_as(options.bytes);
  std::string text = heading(options, collective, options.tcp ? "this one, by TCP" : "this one", tuning.parameters);
  if (!tuning.measured && options.parameters_path.empty())
    text += "This machine has not been measured: run tutti tune.\n\n";
  if (decision.predictions.empty()) text += "The tuner predicts nothing for these ranks and costs.\n";
  if (decided_as != options.bytes) text += fmt::format("Decided and predicted as a call of {} bytes.\n\n", decided_as);
  const std::string chunk = decision.chunk_bytes > 0 ? fmt::format(" in chunks of {}", decision.chunk_bytes) : "";
  return text + table(decision.predictions, config->slot_bytes, decision.algorithm) +
         fmt::format("\n{}{}: {}\n", to_string(decision.algorithm), chunk, decision.reason);
}

}  // namespace

Result<std::string> explain(const ExplainOptions& options) {
  if (options.machines == 0 || options.ranks % options.machines != 0) {
    return invalid(fmt::format("{} ranks cannot be dealt to {} machines equally", options.ranks, options.machines));
  }
  return options.shape.empty() ? explain_here(options) : explain_shape(options);
}

}  // namespace tutti::tool
