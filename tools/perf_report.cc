#include "tools/perf_report.h"

#include <errno.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/cpu/reduce.h"
#include "tools/system_error.h"
#include "tutti/version.h"

namespace tutti::tool {
namespace {

constexpr int kSchemaVersion = 1;
constexpr const char* kTransport = "shm";

// Two decimals where they mean something, within 10 columns.
std::string time_text(double time_us) {
  return time_us < 1e6 ? fmt::format("{:.2f}", time_us) : fmt::format("{:.0f}", time_us);
}

Status print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return system_error("cannot write to stdout", errno);
  }
  return {};
}

std::string measurement_text(const std::optional<PerfMeasurement>& measurement, std::uint64_t bytes,
                             std::int32_t ranks) {
  if (!measurement) return fmt::format("{:>10} {:>8} {:>8} {:>6}", "-", "-", "-", "-");
  const std::string wrong = measurement->wrong ? std::to_string(*measurement->wrong) : "N/A";
  return fmt::format("{:>10} {:>8.2f} {:>8.2f} {:>6}", time_text(measurement->time_us),
                     algbw_GBps(bytes, measurement->time_us), busbw_GBps(bytes, measurement->time_us, ranks), wrong);
}

// The faster of the two ways against the bound, in percent. A single rank has nothing to do in place.
std::optional<double> of_bound_percent(const PerfRow& row, std::int32_t ranks) {
  if (!row.bound_us) return std::nullopt;
  std::optional<double> best_us;
  if (row.out_of_place) best_us = row.out_of_place->time_us;
  if (row.in_place && ranks > 1 && (!best_us || row.in_place->time_us < *best_us)) best_us = row.in_place->time_us;
  if (!best_us || *best_us <= 0) return std::nullopt;
  return 100 * *row.bound_us / *best_us;
}

}  // namespace

double algbw_GBps(std::uint64_t bytes, double time_us) {
  return time_us > 0 ? static_cast<double>(bytes) / time_us / 1e3 : 0;
}

double busbw_GBps(std::uint64_t bytes, double time_us, std::int32_t ranks) {
  return algbw_GBps(bytes, time_us) * 2 * (ranks - 1) / ranks;
}

PerfReport::PerfReport(const PerfOptions& options, std::int32_t ranks, int cores)
    : options_(options), ranks_(ranks), cores_(cores) {}

Status PerfReport::print_header() const {
  std::string text =
      fmt::format("# tutti {} perf all_reduce: {} ranks ({}), {} memory, shm transport, {} cores\n", version(), ranks_,
                  options_.threads ? "threads" : "processes", to_string(options_.memory), cores_);
  text += fmt::format("# warm-up calls: {}, timed calls: {}, results checked: {}\n", options_.warmup_iterations,
                      options_.iterations > 0 ? std::to_string(options_.iterations) : "by time",
                      options_.check ? "yes" : "no");
  text += fmt::format("#\n# {:>11} {:>12} {:>8} {:>9} {:>11} | {:^35} | {:^35} | {:>10} {:>8}\n", "", "", "", "", "",
                      "out-of-place", "in-place", "", "");
  const std::string columns = fmt::format("{:>10} {:>8} {:>8} {:>6}", "time", "algbw", "busbw", "#wrong");
  text += fmt::format("# {:>11} {:>12} {:>8} {:>9} {:>11} | {} | {} | {:>10} {:>8}\n", "size", "count", "type", "redop",
                      "algorithm", columns, columns, "bound", "of-bound");
  const std::string units = fmt::format("{:>10} {:>8} {:>8} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
  text += fmt::format("# {:>11} {:>12} {:>8} {:>9} {:>11} | {} | {} | {:>10} {:>8}\n", "(B)", "(elements)", "", "", "",
                      units, units, "(us)", "(%)");
  return print(text);
}

Status PerfReport::print_row(const PerfRow& row) const {
  const std::uint64_t bytes = row.count * size_of(row.type);
  const std::optional<double> percent = of_bound_percent(row, ranks_);
  return print(fmt::format("  {:>11} {:>12} {:>8} {:>9} {:>11} | {} | {} | {:>10} {:>8}\n", bytes, row.count,
                           to_string(row.type), to_string(row.op), to_string(row.algorithm),
                           measurement_text(row.out_of_place, bytes, ranks_),
                           measurement_text(row.in_place, bytes, ranks_), row.bound_us ? time_text(*row.bound_us) : "-",
                           percent ? fmt::format("{:.1f}", *percent) : "-"));
}

Status PerfReport::add(const PerfRow& row) {
  rows_.push_back(row);
  return print_row(row);
}

std::uint64_t PerfReport::wrong() const {
  std::uint64_t wrong = 0;
  for (const PerfRow& row : rows_) {
    for (const auto* measurement : {&row.out_of_place, &row.in_place}) {
      if (*measurement) wrong += (*measurement)->wrong.value_or(0);
    }
  }
  return wrong;
}

double PerfReport::mean_busbw_GBps() const {
  double total = 0;
  int measurements = 0;
  for (const PerfRow& row : rows_) {
    for (const auto* measurement : {&row.out_of_place, &row.in_place}) {
      if (!*measurement) continue;
      total += busbw_GBps(row.count * size_of(row.type), (*measurement)->time_us, ranks_);
      ++measurements;
    }
  }
  return measurements > 0 ? total / measurements : 0;
}

Status PerfReport::print_footer() const {
  const std::string verdict = !options_.check ? "N/A" : wrong() == 0 ? "0 OK" : fmt::format("{} FAILED", wrong());
  return print(
      fmt::format("# Out of bounds values : {}\n# Avg bus bandwidth    : {:.4g} GB/s\n", verdict, mean_busbw_GBps()));
}

std::string PerfReport::to_json(const std::string& date) const {
  nlohmann::ordered_json document;
  document["schema"] = "tutti-perf";
  document["version"] = kSchemaVersion;
  document["tutti_version"] = version();
  document["date"] = date;
  document["host"] = {{"cores", cores_}, {"simd", kernels::target_name()}};
  document["ranks"] = ranks_;
  document["ranks_are"] = options_.threads ? "threads" : "processes";
  document["warmup_iterations"] = options_.warmup_iterations;
  document["checked"] = options_.check;
  document["wrong"] = options_.check ? nlohmann::ordered_json(wrong()) : nlohmann::ordered_json();
  document["avg_busbw_GBps"] = mean_busbw_GBps();
  document["rows"] = nlohmann::ordered_json::array();
  for (const PerfRow& row : rows_) {
    const std::uint64_t bytes = row.count * size_of(row.type);
    for (const bool in_place : {false, true}) {
      const std::optional<PerfMeasurement>& measurement = in_place ? row.in_place : row.out_of_place;
      if (!measurement) continue;
      nlohmann::ordered_json item;
      item["collective"] = "all_reduce";
      item["algorithm"] = to_string(row.algorithm);
      item["transport"] = kTransport;
      item["memory"] = to_string(options_.memory);
      item["in_place"] = in_place;
      item["type"] = to_string(row.type);
      item["op"] = to_string(row.op);
      item["ranks"] = ranks_;
      item["bytes"] = bytes;
      item["count"] = row.count;
      item["iterations"] = measurement->iterations;
      item["time_us"] = measurement->time_us;
      item["algbw_GBps"] = algbw_GBps(bytes, measurement->time_us);
      item["busbw_GBps"] = busbw_GBps(bytes, measurement->time_us, ranks_);
      item["wrong"] = measurement->wrong ? nlohmann::ordered_json(*measurement->wrong) : nlohmann::ordered_json();
      item["bound_us"] = row.bound_us ? nlohmann::ordered_json(*row.bound_us) : nlohmann::ordered_json();
      document["rows"].push_back(std::move(item));
    }
  }
  return document.dump(2) + "\n";
}

}  // namespace tutti::tool
