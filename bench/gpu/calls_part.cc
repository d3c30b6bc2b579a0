#include "bench/gpu/calls_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "bench/gpu/ranks.h"
#include "plan/plan.h"

namespace tutti::bench {
namespace {

// Goal for calls of kBandwidthBytes or more: the shortest possible time (bound_us in measure_cell()), divided by the
// measured time, is at least this.
constexpr double kBandwidthBar = 0.85;
constexpr std::size_t kBandwidthBytes = std::size_t{64} << 20;
// Goal for calls of kLatencyBytes: the measured time is at most this many times the duration of one empty kernel in
// the stream of each rank (Cell::empty_us).
constexpr double kLatencyBar = 1.5;
constexpr std::size_t kLatencyBytes = 8;
constexpr unsigned kShortRounds = 21;  // below kShortBytes the number of rounds is tripled, but not to more than this
constexpr std::size_t kShortBytes = 1 << 20;

// Returns the rate of the driver's copy, in gigabytes per second, at the largest measured size that is at most `bytes`,
// or at the smallest measured size if all are larger. The rate depends on the size, because small buffers stay in the
// caches.
double copy_rate(const CallsOptions& options, std::size_t bytes) {
  double rate = options.copies.front().gigabytes_per_s;
  for (const CopyRate& copy : options.copies) {
    if (copy.bytes <= bytes) rate = copy.gigabytes_per_s;
  }
  return rate;
}

std::string text_of_size(std::size_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  return bytes < std::size_t{1} << 20 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

Rounds rounds_for(const CallsOptions& options, std::size_t bytes) {
  Rounds rounds = options.rounds;
  if (bytes < kShortBytes) rounds.rounds = std::max(rounds.rounds, std::min(3 * rounds.rounds, kShortRounds));
  return rounds;
}

// A method by which the calls of all ranks are submitted to their streams.
struct SubmitMethod {
  const char* name;
  std::function<Status()> put;
};

struct Cell {
  Ranks& ranks;
  std::size_t bytes = 0;
  // Microseconds that one empty kernel in the stream of each rank takes; nullopt: the kernel is not available.
  std::optional<double> empty_us;
};

Result<Row> measure_cell(const CallsOptions& options, const Cell& cell, const SubmitMethod& method,
                         std::uint64_t& wrong_ranks) {
  const auto samples = Gpu::measure(rounds_for(options, cell.bytes), [&] { return cell.ranks.time_us(method.put); });
  if (!samples) return samples.error();
  const auto wrong = cell.ranks.count_wrong(cell.bytes / sizeof(float), method.put, options.corrupt);
  TUTTI_TRY(wrong);
  wrong_ranks += *wrong;
  const double us = samples->median();
  const double bound_us =
      2.0 * cell.ranks.count() * static_cast<double>(cell.bytes) / copy_rate(options, cell.bytes) / 1000;
  Row row = {{"ranks", cell.ranks.count()},
             {"size", text_of_size(cell.bytes)},
             {"bytes", cell.bytes},
             {"calls", method.name},
             {"us", us},
             {"bound us", bound_us},
             {"bound / time", bound_us / us}};
  row["time / empty"] = cell.empty_us ? Row(us / *cell.empty_us) : Row(nullptr);
  row["bar"] = nullptr;
  if (cell.bytes >= kBandwidthBytes) row["bar"] = bound_us / us >= kBandwidthBar ? "met" : "missed";
  if (cell.bytes == kLatencyBytes && cell.empty_us) row["bar"] = us <= kLatencyBar * *cell.empty_us ? "met" : "missed";
  row["rounds"] = samples->us.size();
  row["right"] = *wrong == 0;
  row["samples_us"] = samples->us;
  return row;
}

// Returns how long one empty kernel in the stream of every rank takes, in microseconds; nullopt if the kernel is not
// available, for example because this build has no device code.
Result<std::optional<double>> time_empty(Gpu& gpu, const CallsOptions& options, const Ranks& ranks) {
  const auto kernel = gpu.kernel("tutti_empty");
  if (!kernel) return std::optional<double>();
  const auto samples = Gpu::measure(rounds_for(options, kLatencyBytes),
                                    [&] { return ranks.time_us([&] { return ranks.put_kernels(*kernel); }); });
  if (!samples) return samples.error();
  return std::optional<double>(samples->median());
}

Status measure_ranks(Gpu& gpu, const CallsOptions& options, int count, Section& section, std::uint64_t& wrong) {
  for (const std::size_t bytes : options.sizes) {
    const Result<std::size_t> free = gpu.free_bytes();
    TUTTI_TRY(free);
    if (2 * static_cast<std::size_t>(count) * bytes > *free / 4 * 3) {
      section.notes.push_back(fmt::format("{} ranks of {}: skipped, because the GPU has not enough free memory.", count,
                                          text_of_size(bytes)));
      continue;
    }
    auto ranks = Ranks::create(gpu, count, bytes);
    if (!ranks) return ranks.error();
    const auto empty = time_empty(gpu, options, **ranks);
    TUTTI_TRY(empty);
    const Cell cell{**ranks, bytes, *empty};
    const std::size_t elements = bytes / sizeof(float);
    for (const SubmitMethod& method :
         {SubmitMethod{"a group", [&] { return (*ranks)->put_as_group(elements, Algorithm::kAuto); }},
          SubmitMethod{"threads", [&] { return (*ranks)->put_by_threads(elements, Algorithm::kAuto); }}}) {
      const Result<Row> row = measure_cell(options, cell, method, wrong);
      TUTTI_TRY(row);
      section.rows.push_back(*row);
    }
  }
  return {};
}

// The number of steps in the longest channel of rank 0, in the algorithm's plan for an all-reduce.
Result<std::size_t> steps_of(Algorithm algorithm, int ranks) {
  const Collective collective{.kind = CollectiveKind::kAllReduce, .ranks = static_cast<std::uint32_t>(ranks)};
  const Result<Generator> generator = find_generator(collective, algorithm);
  if (!generator) return generator.error();
  std::size_t most = 0;
  for (const Channel& channel : generator->build(generator->shape, 0).channels) {
    most = std::max(most, channel.steps.size());
  }
  return most;
}

// Measures the cost of a step. A chunk has one element (ring), or as many elements as there are ranks (one-shot), so
// that a step is almost only overhead.
Status measure_steps(Gpu& gpu, const CallsOptions& options, int count, Section& section, std::uint64_t& wrong) {
  const auto elements = static_cast<std::size_t>(count);
  auto ranks = Ranks::create(gpu, count, elements * sizeof(float));
  if (!ranks) return ranks.error();
  // for each algorithm: number of steps of a call, and duration of the call in microseconds
  std::vector<std::pair<double, double>> points;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kRing}) {
    const Result<std::size_t> steps = steps_of(algorithm, count);
    TUTTI_TRY(steps);
    const auto put = [&] { return (*ranks)->put_as_group(elements, algorithm); };
    const auto samples = Gpu::measure(rounds_for(options, kLatencyBytes), [&] { return (*ranks)->time_us(put); });
    if (!samples) return samples.error();
    const auto bad = (*ranks)->count_wrong(elements, put, options.corrupt);
    TUTTI_TRY(bad);
    wrong += *bad;
    points.emplace_back(static_cast<double>(*steps), samples->median());
    section.rows.push_back({{"ranks", count},
                            {"algorithm", std::string(to_string(algorithm))},
                            {"bytes", elements * sizeof(float)},
                            {"steps of a rank", *steps},
                            {"us", samples->median()},
                            {"ns a step", nullptr},
                            {"samples_us", samples->us}});
  }
  const auto [few, first_us] = points.front();
  const auto [many, last_us] = points.back();
  if (many > few) section.rows.back()["ns a step"] = 1000 * (last_us - first_us) / (many - few);
  return {};
}

// Measures all-gathers of one size, by kernels and then by copy engines. The communicators read the method from the
// environment variable when they are created.
Status measure_gathers(Gpu& gpu, const CallsOptions& options, std::size_t bytes, Section& section,
                       std::uint64_t& wrong) {
  constexpr int kRanks = 2;
  for (const bool by_copies : {false, true}) {
    setenv("TUTTI_DEVICE_COPIES", by_copies ? "1" : "0", 1);
    auto ranks = Ranks::create(gpu, kRanks, bytes);
    unsetenv("TUTTI_DEVICE_COPIES");
    if (!ranks) return std::move(ranks).error();
    const std::size_t elements = bytes / sizeof(float) / kRanks;
    const auto put = [&] { return (*ranks)->put_gather(elements); };
    const auto samples = Gpu::measure(rounds_for(options, bytes), [&] { return (*ranks)->time_us(put); });
    TUTTI_TRY(samples);
    const auto bad = (*ranks)->count_wrong_gathers(elements, options.corrupt);
    TUTTI_TRY(bad);
    wrong += *bad;
    const double us = samples->median();
    const double bound_us = 2.0 * kRanks * static_cast<double>(bytes) / copy_rate(options, bytes) / 1000;
    section.rows.push_back({{"ranks", kRanks},
                            {"size of an output", text_of_size(bytes)},
                            {"bytes", bytes},
                            {"by", by_copies ? "copy engines" : "kernels"},
                            {"us", us},
                            {"bound us", bound_us},
                            {"bound / time", bound_us / us},
                            {"right", *bad == 0},
                            {"samples_us", samples->us}});
  }
  return {};
}

Section gathers_section() {
  return {
      .name = "all_gather",
      .title = "All-gather by kernels and by copy engines",
      .notes = {"In a group, one process, a stream for each rank (TUTTI_DEVICE_COPIES=0, then 1). The bound assumes "
                "that every byte of every output is read once and written once, at the rate of the driver's copy in "
                "this run. Every byte is checked."},
      .columns = {"ranks", "size of an output", "by", "us", "bound us", "bound / time", "right"},
      .rows = {}};
}

Section all_reduce_section() {
  return {
      .name = "all_reduce",
      .title = "All-reduce of ranks on one GPU",
      .notes = {fmt::format(
          "float32, sum, one process, a stream for each rank, out of place. The time is from an event in the first "
          "stream to the end of all streams, so it includes the host's time for the calls. The bound assumes that "
          "every rank's vector is read once and written once, at the rate of the driver's copy in this run (goal: "
          "{:.0f} % for 64 MiB and more). Empty is the time of an empty kernel in every rank's stream, measured in "
          "the same way (goal for 8 B: at most {} times). Every element is checked.",
          100 * kBandwidthBar, kLatencyBar)},
      .columns = {"ranks", "size", "calls", "us", "bound us", "bound / time", "time / empty", "bar", "rounds", "right"},
      .rows = {}};
}

Section steps_section() {
  return {.name = "steps",
          .title = "Cost of a step",
          .notes = {"All-reduce of one element per rank, in a group. The ring has many steps, one-shot has few. The "
                    "cost of a step is the difference of the times divided by the difference of the steps. It includes "
                    "waiting for a neighbour, but hardly any data movement. It is meaningless if the host executes "
                    "the calls."},
          .columns = {"ranks", "algorithm", "steps of a rank", "us", "ns a step"},
          .rows = {}};
}

}  // namespace

Result<CallsResult> measure_calls(Gpu& gpu, const CallsOptions& options) {
  TUTTI_ASSERT(!options.copies.empty());
  CallsResult result;
  Section calls = all_reduce_section();
  for (const int count : options.ranks) TUTTI_TRY(measure_ranks(gpu, options, count, calls, result.wrong));
  Section steps = steps_section();
  TUTTI_TRY(measure_steps(gpu, options, options.ranks.back(), steps, result.wrong));
  Section gathers = gathers_section();
  for (const std::size_t bytes : options.gather_sizes) {
    TUTTI_TRY(measure_gathers(gpu, options, bytes, gathers, result.wrong));
  }
  result.sections = {std::move(calls), std::move(steps), std::move(gathers)};
  return result;
}

}  // namespace tutti::bench
