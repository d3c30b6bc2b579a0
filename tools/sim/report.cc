#include "tools/sim/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/perf/collective.h"
#include "tutti/version.h"

namespace tutti::tool {
namespace {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::pair<std::uint64_t, const char*> kUnits[] = {{1ull << 30, "GiB"}, {1ull << 20, "MiB"}, {1024, "KiB"}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes >= unit) return fmt::format("{:.4g} {}", static_cast<double>(bytes) / static_cast<double>(unit), name);
  }
  return fmt::format("{} B", bytes);
}

std::string_view name_of(FabricKind kind) { return kind == FabricKind::kRailOptimised ? "rail-optimised" : "fat-tree"; }

std::string network_text(const Cluster& cluster) {
  const Fabric& fabric = cluster.fabric;
  if (cluster.machines == 1) return "none: one machine";
  return fmt::format("{}, {} machines to a leaf switch, {} spines, oversubscription {:g}", name_of(fabric.kind),
                     fabric.machines_per_leaf, fabric.spines, fabric.oversubscription);
}

std::uint32_t channels_of(const SimTask& task) {
  return task.options.channels > 0 ? task.options.channels : task.parameters.channels;
}

std::vector<std::string_view> protocols_of(const SimTask& task) {
  std::vector<std::string_view> names;
  for (const Protocol protocol : task.protocols) names.push_back(to_string(protocol));
  return names;
}

std::vector<std::string_view> models_of(const SimReport& report) {
  std::vector<std::string_view> names;
  for (const SimRow& row : report.rows) {
    const std::string_view name = to_string(row.result.model);
    if (row.algorithm == Algorithm::kAuto || std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
  }
  return names;
}

std::string injected_text(const SimTask& task) {
  const SimulateOptions& options = task.options;
  std::vector<std::string> all;
  for (const Straggler& each : options.stragglers)
    all.push_back(fmt::format("straggler {}:{:g}", each.rank, each.factor));
  for (const std::uint32_t rank : options.dead_ranks) all.push_back(fmt::format("dead rank {}", rank));
  for (const std::string& link : options.dead_links) all.push_back(fmt::format("dead link \"{}\"", link));
  if (options.jitter > 0) all.push_back(fmt::format("jitter {:g}, seed {}", options.jitter, options.seed));
  return all.empty() ? "nothing" : fmt::format("{}", fmt::join(all, ", "));
}

std::string assumptions(const SimTask& task, const SimReport& report) {
  const Parameters& costs = task.parameters;
  const std::vector<std::string_view> models = models_of(report);
  std::string text = fmt::format("machine   {}\nnetwork   {}\n", task.machine, network_text(task.cluster));
  text += fmt::format("costs     {}{}{}{}{}\n", costs.name, costs.source.empty() ? "" : ", ", costs.source,
                      task.parameters_notes.empty() ? "" : "; ", task.parameters_notes);
  text += fmt::format("calls     {} channels, {} slots of {}, protocol {}\n", channels_of(task), costs.slots,
                      bytes_text(costs.slot_bytes), fmt::join(protocols_of(task), " or "));
  text += fmt::format("model     {}{}\n", fmt::join(models, ", "),
                      task.options.model == SimulationModel::kAuto ? " (chosen by size)" : "");
  if (models.size() > 1)
    text += "          rows of different models include different effects: compare them with care\n";
  return text + fmt::format("injected  {}\n", injected_text(task));
}

nlohmann::ordered_json assumed_json(const SimTask& task) {
  using nlohmann::ordered_json;
  const Fabric& fabric = task.cluster.fabric;
  ordered_json json{{"machine", task.machine},
                    {"fabric", nullptr},
                    {"parameters_notes", task.parameters_notes},
                    {"channels", channels_of(task)},
                    {"slots", task.parameters.slots},
                    {"slot_bytes", task.parameters.slot_bytes},
                    {"protocols", protocols_of(task)},
                    {"model", to_string(task.options.model)}};
  if (task.cluster.machines > 1) {
    json["fabric"] = {{"kind", name_of(fabric.kind)},
                      {"machines_per_leaf", fabric.machines_per_leaf},
                      {"spines", fabric.spines},
                      {"oversubscription", fabric.oversubscription}};
  }
  return json;
}

nlohmann::ordered_json injected_json(const SimTask& task) {
  const SimulateOptions& options = task.options;
  nlohmann::ordered_json stragglers = nlohmann::ordered_json::array();
  for (const Straggler& each : options.stragglers) stragglers.push_back({{"rank", each.rank}, {"factor", each.factor}});
  return {{"stragglers", stragglers},
          {"dead_ranks", options.dead_ranks},
          {"dead_links", options.dead_links},
          {"jitter", options.jitter},
          {"seed", options.seed}};
}

std::string model_of(const SimRow& row) {
  if (row.algorithm == Algorithm::kAuto) return "formula";
  return fmt::format("{}{}", to_string(row.result.model), row.bounded ? "+links" : "");
}

}  // namespace

std::string_view name_of(const SimRow& row) {
  return row.algorithm == Algorithm::kAuto ? "in_switch" : to_string(row.algorithm);
}

double algbw_gbytes_per_s(const SimTask& task, const SimRow& row) {
  return static_cast<double>(task.bytes) / row.result.time_us / 1000;
}

double busbw_gbytes_per_s(const SimTask& task, const SimRow& row) {
  return algbw_gbytes_per_s(task, row) *
         busbw_factor({.kind = task.collective.kind}, static_cast<std::int32_t>(task.collective.ranks));
}

double memory_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string to_text(const SimTask& task, const SimReport& report) {
  const Cluster& cluster = task.cluster;
  std::string text =
      fmt::format("{} of {} on {}, {} ranks\n\n{}", to_string(task.collective.kind), bytes_text(task.bytes),
                  cluster.name, task.collective.ranks, assumptions(task, report));
  text += fmt::format("\n{:<20} {:<8} {:>14} {:>11} {:>11} {:>12} {:>15} {:>7} {:>8}\n", "algorithm", "protocol",
                      "time_us", "algbw_GB/s", "busbw_GB/s", "model", "messages", "tiles", "wall_s");
  bool bounded = false;
  for (const SimRow& row : report.rows) {
    bounded |= row.bounded;
    text +=
        fmt::format("{:<20} {:<8} {:>14.3f} {:>11.3f} {:>11.3f} {:>12} {:>15} {:>7} {:>8.2f}\n", name_of(row),
                    to_string(row.protocol), row.result.time_us, algbw_gbytes_per_s(task, row),
                    busbw_gbytes_per_s(task, row), model_of(row), row.result.messages, row.result.tiles, row.wall_s);
  }
  if (bounded) text += "+links: the model lets links carry more than they can; the time is that of the busiest one\n";
  for (const std::string& each : report.left_out) text += fmt::format("left out: {}\n", each);
  const SimRow& best = report.rows.front();
  if (!best.result.busiest.empty()) {
    text += fmt::format("\nbusiest links of {}:\n", name_of(best));
    for (const LinkLoad& each : best.result.busiest) {
      text += fmt::format("  {:<44} {:>12} {:>6.1f}%\n", each.name, bytes_text(static_cast<std::uint64_t>(each.bytes)),
                          100 * each.utilisation);
    }
    const std::uint64_t more = best.result.links_in_use - best.result.busiest.size();
    if (more > 0) text += fmt::format("  and {} more that carry as much or less\n", more);
  } else if (best.algorithm != Algorithm::kAuto && best.result.messages > 0) {
    text += fmt::format("\nbusiest links of {}: too many routes to add up\n", name_of(best));
  }
  text += fmt::format("\nmemory used: {:.0f} MiB\n", memory_mib());
  return text;
}

std::string to_json(const SimTask& task, const SimReport& report) {
  using nlohmann::ordered_json;
  const auto row_of = [&](const SimRow& row) {
    ordered_json links = ordered_json::array();
    for (const LinkLoad& each : row.result.busiest) {
      links.push_back({{"link", each.name}, {"bytes", each.bytes}, {"utilisation", each.utilisation}});
    }
    return ordered_json{{"algorithm", name_of(row)},
                        {"protocol", to_string(row.protocol)},
                        {"time_us", row.result.time_us},
                        {"algbw_GBps", algbw_gbytes_per_s(task, row)},
                        {"busbw_GBps", busbw_gbytes_per_s(task, row)},
                        {"model", row.algorithm == Algorithm::kAuto ? "formula" : to_string(row.result.model)},
                        {"bounded_by_links", row.bounded},
                        {"messages", row.result.messages},
                        {"tiles", row.result.tiles},
                        {"wall_s", row.wall_s},
                        {"busiest", links},
                        {"links_in_use", row.result.links_in_use}};
  };
  ordered_json all = row_of(report.rows.front());
  ordered_json json{{"schema", "tutti-sim"},
                    {"version", 1},
                    {"tutti_version", version()},
                    {"collective", to_string(task.collective.kind)},
                    {"bytes", task.bytes},
                    {"ranks", task.collective.ranks},
                    {"machines", task.cluster.machines},
                    {"shape", task.cluster.name},
                    {"parameters", task.parameters.name},
                    {"parameters_source", task.parameters.source},
                    {"assumed", assumed_json(task)},
                    {"injected", injected_json(task)}};
  json.update(all);
  ordered_json rows = ordered_json::array();
  for (const SimRow& row : report.rows) rows.push_back(row_of(row));
  json["rows"] = rows;
  json["left_out"] = report.left_out;
  json["memory_mib"] = memory_mib();
  return json.dump(2) + "\n";
}

}  // namespace tutti::tool
