#include "tools/sim_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "tools/perf_collective.h"
#include "tutti/version.h"

namespace tutti::tool {
namespace {

std::string bytes_in_words(std::uint64_t bytes) {
  constexpr std::pair<std::uint64_t, const char*> kUnits[] = {{1ull << 30, "GiB"}, {1ull << 20, "MiB"}, {1024, "KiB"}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes >= unit) return fmt::format("{:.4g} {}", static_cast<double>(bytes) / static_cast<double>(unit), name);
  }
  return fmt::format("{} B", bytes);
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
  std::string text = fmt::format("{} of {} on {}, {} ranks; parameters: {}{}{}\n", to_string(task.collective.kind),
                                 bytes_in_words(task.bytes), cluster.name, task.collective.ranks, task.parameters.name,
                                 task.parameters.source.empty() ? "" : ", ", task.parameters.source);
  text += fmt::format("\n{:<20} {:<8} {:>14} {:>11} {:>11} {:>7} {:>15} {:>7} {:>8}\n", "algorithm", "protocol",
                      "time_us", "algbw_GB/s", "busbw_GB/s", "model", "messages", "tiles", "wall_s");
  for (const SimRow& row : report.rows) {
    text += fmt::format("{:<20} {:<8} {:>14.3f} {:>11.3f} {:>11.3f} {:>7} {:>15} {:>7} {:>8.2f}\n", name_of(row),
                        to_string(row.protocol), row.result.time_us, algbw_gbytes_per_s(task, row),
                        busbw_gbytes_per_s(task, row), row.bounded ? "links" : to_string(row.result.model),
                        row.result.messages, row.result.tiles, row.wall_s);
  }
  for (const std::string& each : report.left_out) text += fmt::format("left out: {}\n", each);
  const SimRow& best = report.rows.front();
  if (!best.result.busiest.empty()) {
    text += fmt::format("\nbusiest links of {}:\n", name_of(best));
    for (const LinkLoad& each : best.result.busiest) {
      text += fmt::format("  {:<44} {:>12} {:>6.1f}%\n", each.name,
                          bytes_in_words(static_cast<std::uint64_t>(each.bytes)), 100 * each.utilisation);
    }
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
                        {"model", to_string(row.result.model)},
                        {"bounded_by_links", row.bounded},
                        {"messages", row.result.messages},
                        {"tiles", row.result.tiles},
                        {"wall_s", row.wall_s},
                        {"busiest", links}};
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
                    {"parameters_source", task.parameters.source}};
  json.update(all);
  ordered_json rows = ordered_json::array();
  for (const SimRow& row : report.rows) rows.push_back(row_of(row));
  json["rows"] = rows;
  json["left_out"] = report.left_out;
  json["memory_mib"] = memory_mib();
  return json.dump(2) + "\n";
}

}  // namespace tutti::tool
