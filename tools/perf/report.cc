#include "tools/perf/report.h"

#include <errno.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/cpu/reduce.h"
#include "tools/common/system_error.h"
#include "tutti/version.h"

namespace tutti::tool {
namespace {

constexpr int kSchemaVersion = 2;
constexpr std::string_view kNone = "none";  // shown as type or operation if the collective has none

// The time with two decimals or, from 1 s on, with none, so that the text has at most 10 characters.
std::string time_text(double time_us) {
  return time_us < 1e6 ? fmt::format("{:.2f}", time_us) : fmt::format("{:.0f}", time_us);
}

Status print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return system_error("cannot write to stdout", errno);
  }
  return {};
}

// The reference as a percentage of the faster of the two times (out of place and in place), so 100 means that the
// collective takes as long as the reference. With a single rank, only the out-of-place time counts, because an in-place
// call does nothing there. Returns nothing if the row has no reference or no such time.
std::optional<double> of_reference_percent(const PerfRow& row, std::int32_t ranks) {
  if (!row.reference_us) return std::nullopt;
  std::optional<double> best_us;
  if (row.out_of_place) best_us = row.out_of_place->time_us;
  if (row.in_place && ranks > 1 && (!best_us || row.in_place->time_us < *best_us)) best_us = row.in_place->time_us;
  if (!best_us || *best_us <= 0) return std::nullopt;
  return 100 * *row.reference_us / *best_us;
}

}  // namespace

double algbw_GBps(std::uint64_t bytes, double time_us) {
  return time_us > 0 ? static_cast<double>(bytes) / time_us / 1e3 : 0;
}

bool has_reference(const PerfCollective& collective, const PerfJob& job) {
  return collective.kind == CollectiveKind::kAllReduce && job.transport == "shm";
}

PerfReport::PerfReport(const PerfOptions& options, PerfJob job)
    : options_(options), job_(std::move(job)), has_reference_(has_reference(options.collective, job_)) {}

std::uint64_t PerfReport::bytes_of(const PerfRow& row) const { return row.elements * size_of(row.type); }

double PerfReport::busbw_GBps(const PerfRow& row, double time_us) const {
  return algbw_GBps(bytes_of(row), time_us) * busbw_factor(options_.collective, job_.ranks);
}

std::string PerfReport::type_text(const PerfRow& row) const {
  return std::string(has_buffers(options_.collective) ? to_string(row.type) : kNone);
}

std::string PerfReport::op_text(const PerfRow& row) const {
  return std::string(adds(options_.collective) ? to_string(row.op) : kNone);
}

std::string PerfReport::measurement_text(const PerfRow& row, const std::optional<PerfMeasurement>& measurement) const {
  if (!measurement) return fmt::format("{:>10} {:>8} {:>8} {:>6}", "-", "-", "-", "-");
  const std::string wrong = measurement->wrong ? std::to_string(*measurement->wrong) : "N/A";
  return fmt::format("{:>10} {:>8.2f} {:>8.2f} {:>6}", time_text(measurement->time_us),
                     algbw_GBps(bytes_of(row), measurement->time_us), busbw_GBps(row, measurement->time_us), wrong);
}

Status PerfReport::print_header() const {
  std::string text = fmt::format("# tutti {} perf {}: {} ranks ({}), ", version(), name_of(options_.collective),
                                 job_.ranks, options_.threads ? "threads" : "processes");
  if (has_root(options_.collective)) text += fmt::format("root {}, ", options_.root);
  text += fmt::format("{} memory, {} transport, {} cores{}\n", to_string(options_.memory), job_.transport, job_.cores,
                      job_.nodes > 1 ? fmt::format(", {} nodes", job_.nodes) : "");
  text += fmt::format("# warm-up calls: {}, timed calls: {}, results checked: {}\n", options_.warmup_iterations,
                      options_.iterations > 0 ? std::to_string(options_.iterations) : "by time",
                      options_.check ? "yes" : "no");
  if (!left_out_.empty()) text += "# " + left_out_ + "\n";
  const auto line = [&](std::string_view size, std::string_view count, std::string_view type, std::string_view op,
                        std::string_view algorithm, const std::string& out, const std::string& in,
                        const std::string& reference) {
    text += fmt::format("# {:>11} {:>12} {:>11} {:>9} {:>17} | {:^35} | {:^35}{}\n", size, count, type, op, algorithm,
                        out, in, has_reference_ ? reference : "");
  };
  const auto reference = [](std::string_view left, std::string_view right) {
    return fmt::format(" | {:>10} {:>12}", left, right);
  };
  const std::string columns = fmt::format("{:>10} {:>8} {:>8} {:>6}", "time", "algbw", "busbw", "#wrong");
  const std::string units = fmt::format("{:>10} {:>8} {:>8} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
  text += "#\n";
  line("", "", "", "", "", "out-of-place", "in-place", reference("", ""));
  line("size", "count", "type", "redop", "algorithm", columns, columns, reference("reference", "of-reference"));
  line("(B)", "(elements)", "", "", "", units, units, reference("(us)", "(%)"));
  return print(text);
}

Status PerfReport::print_row(const PerfRow& row) const {
  std::string reference;
  if (has_reference_) {
    const std::optional<double> percent = of_reference_percent(row, job_.ranks);
    reference = fmt::format(" | {:>10} {:>12}", row.reference_us ? time_text(*row.reference_us) : "-",
                            percent ? fmt::format("{:.1f}", *percent) : "-");
  }
  return print(fmt::format("  {:>11} {:>12} {:>11} {:>9} {:>17} | {} | {}{}\n", bytes_of(row),
                           shown_count(options_.collective, job_.ranks, row.elements), type_text(row), op_text(row),
                           to_string(row.algorithm), measurement_text(row, row.out_of_place),
                           measurement_text(row, row.in_place), reference));
}

Status PerfReport::add(const PerfRow& row) {
  rows_.push_back(row);
  return print_row(row);
}

std::optional<std::uint64_t> PerfReport::wrong() const {
  std::optional<std::uint64_t> wrong;
  for (const PerfRow& row : rows_) {
    for (const auto* measurement : {&row.out_of_place, &row.in_place}) {
      if (*measurement && (*measurement)->wrong) wrong = wrong.value_or(0) + *(*measurement)->wrong;
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
      total += busbw_GBps(row, (*measurement)->time_us);
      ++measurements;
    }
  }
  return measurements > 0 ? total / measurements : 0;
}

// Reports whether the GPUs or the host executed the calls on GPU memory. Some plans are executed by the host although
// the ranks have GPUs.
std::string PerfReport::carried_out_text() const {
  int by_devices = 0;
  int all = 0;
  for (const PerfRow& row : rows_) {
    for (const auto* measurement : {&row.out_of_place, &row.in_place}) {
      if (!*measurement) continue;
      ++all;
      by_devices += (*measurement)->on_devices ? 1 : 0;
    }
  }
  const std::string_view who = by_devices == 0 ? "the host" : "the GPUs";
  const std::string rest = by_devices == 0 || by_devices == all
                               ? std::string()
                               : fmt::format(" in {} of {} measurements, else by the host", by_devices, all);
  return fmt::format("# Calls on device memory were carried out by {}{}\n", who, rest);
}

Status PerfReport::print_footer() const {
  const std::optional<std::uint64_t> sum = wrong();
  const std::string verdict = !sum ? "N/A" : *sum == 0 ? "0 OK" : fmt::format("{} FAILED", *sum);
  return print(fmt::format("# Out of bounds values : {}\n# Avg bus bandwidth    : {:.4g} GB/s\n{}", verdict,
                           mean_busbw_GBps(), options_.memory == MemoryKind::kCuda ? carried_out_text() : ""));
}

std::vector<nlohmann::ordered_json> PerfReport::json_rows() const {
  const nlohmann::ordered_json root =
      has_root(options_.collective) ? nlohmann::ordered_json(options_.root) : nlohmann::ordered_json();
  std::vector<nlohmann::ordered_json> rows;
  for (const PerfRow& row : rows_) {
    for (const bool in_place : {false, true}) {
      const std::optional<PerfMeasurement>& measurement = in_place ? row.in_place : row.out_of_place;
      if (!measurement) continue;
      nlohmann::ordered_json item;
      item["collective"] = name_of(options_.collective);
      item["algorithm"] = to_string(row.algorithm);
      item["transport"] = job_.transport;
      item["memory"] = to_string(options_.memory);
      if (options_.memory == MemoryKind::kCuda) item["carried_out_by"] = measurement->on_devices ? "devices" : "host";
      item["in_place"] = in_place;
      item["type"] = type_text(row);
      item["op"] = op_text(row);
      item["root"] = root;
      item["ranks"] = job_.ranks;
      item["nodes"] = job_.nodes;
      item["bytes"] = bytes_of(row);
      item["count"] = shown_count(options_.collective, job_.ranks, row.elements);
      item["iterations"] = measurement->iterations;
      item["time_us"] = measurement->time_us;
      item["algbw_GBps"] = algbw_GBps(bytes_of(row), measurement->time_us);
      item["busbw_GBps"] = busbw_GBps(row, measurement->time_us);
      item["wrong"] = measurement->wrong ? nlohmann::ordered_json(*measurement->wrong) : nlohmann::ordered_json();
      item["reference_us"] = row.reference_us ? nlohmann::ordered_json(*row.reference_us) : nlohmann::ordered_json();
      rows.push_back(std::move(item));
    }
  }
  return rows;
}

std::string PerfReport::to_json(const std::string& date) const {
  const std::optional<std::uint64_t> sum = wrong();
  nlohmann::ordered_json document;
  document["schema"] = "tutti-perf";
  document["version"] = kSchemaVersion;
  document["tutti_version"] = version();
  document["date"] = date;
  document["host"] = {{"cores", job_.cores}, {"simd", kernels::target_name()}};
  document["ranks"] = job_.ranks;
  document["ranks_are"] = options_.threads ? "threads" : "processes";
  document["warmup_iterations"] = options_.warmup_iterations;
  document["checked"] = sum.has_value();
  document["wrong"] = sum ? nlohmann::ordered_json(*sum) : nlohmann::ordered_json();
  document["avg_busbw_GBps"] = mean_busbw_GBps();
  if (!left_out_.empty()) document["left_out"] = left_out_;
  document["rows"] = json_rows();
  return document.dump(2) + "\n";
}

// Floating-point numbers have six significant digits, because the measurements are not more precise and people read
// this file as well. No value needs quotes, because names contain neither commas nor quotes.
std::string PerfReport::to_csv() const {
  std::string text;
  for (const nlohmann::ordered_json& row : json_rows()) {
    std::vector<std::string> keys;
    std::vector<std::string> values;
    for (const auto& [key, value] : row.items()) {
      keys.push_back(key);
      values.push_back(value.is_null()           ? ""
                       : value.is_string()       ? value.get<std::string>()
                       : value.is_number_float() ? fmt::format("{:.6g}", value.get<double>())
                                                 : value.dump());
    }
    if (text.empty()) text = fmt::format("{}\n", fmt::join(keys, ","));
    text += fmt::format("{}\n", fmt::join(values, ","));
  }
  return text;
}

}  // namespace tutti::tool
