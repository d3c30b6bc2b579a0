// Solves the formulas of the cost model for the parameters. The times of short messages give the fixed times, and
// the additional time of longer messages gives the bandwidths.
#include "model/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "model/fit_choices.h"

namespace tutti {
namespace {

// Messages of at most this many bytes are short: their bytes take no noticeable time.
constexpr std::uint64_t kShortBytes = 64;
// Messages of about this many bytes or more are long: their time grows with their length.
constexpr std::uint64_t kLongBytes = 1 << 20;
// Upper bound for a bandwidth, in GB/s. Noise can let longer messages appear to take no more time than shorter
// ones, and the bandwidth would then be infinite.
constexpr double kFastest = 1e4;

// The measured times, by name of the measurement.
class Times {
 public:
  explicit Times(std::span<const Measurement> measured) : measured_(measured) {}

  // The median time of the shortest message of this measurement. Returns nothing if none has at most `most` bytes.
  std::optional<double> shortest(std::string_view what, std::uint64_t most) const {
    const Measurement* best = nullptr;
    for (const Measurement& one : measured_) {
      if (one.what == what && one.bytes <= most && (best == nullptr || one.bytes < best->bytes)) best = &one;
    }
    return best == nullptr ? std::nullopt : std::optional(best->median_us);
  }

  // The smallest Measurement::bytes of this measurement; for "mailboxes.crowd" it is the number of ranks.
  std::uint64_t least_bytes(std::string_view what) const {
    std::uint64_t least = UINT64_MAX;
    for (const Measurement& one : measured_) {
      if (one.what == what) least = std::min(least, one.bytes);
    }
    return least;
  }

  // The slope in microseconds per byte, from the shortest message of at least `least` bytes to the longest message, but
  // at least the slope of the bandwidth kFastest. Returns nothing if fewer than two sizes of at least `least` bytes
  // were measured.
  std::optional<double> us_per_byte(std::string_view what, std::uint64_t least) const {
    const Measurement* low = nullptr;
    const Measurement* high = nullptr;
    for (const Measurement& one : measured_) {
      if (one.what != what || one.bytes < least) continue;
      if (low == nullptr || one.bytes < low->bytes) low = &one;
      if (high == nullptr || one.bytes > high->bytes) high = &one;
    }
    if (low == nullptr || low == high) return std::nullopt;
    const double slope = (high->median_us - low->median_us) / static_cast<double>(high->bytes - low->bytes);
    return std::max(slope, 1e-3 / kFastest);
  }

 private:
  std::span<const Measurement> measured_;
};

double rounded(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", number);
  return std::strtod(text, nullptr);
}

void round_all(Parameters& p) {
  for (auto& level : p.costs) {
    for (MessageCost& cost : level) {
      for (double* number : {&cost.post_us, &cost.latency_us, &cost.gap_us, &cost.gbytes_per_s}) {
        *number = rounded(*number);
      }
    }
  }
  for (double* number : {&p.launch_us, &p.step_us, &p.reduce_gbytes_per_s, &p.copy_gbytes_per_s, &p.attach_us,
                         &p.attach_gbytes_per_s, &p.handover_us}) {
    *number = rounded(*number);
  }
}

// Computes post_us, latency_us and gbytes_per_s of a level ("memory" or "nic") for the protocol simple. Three
// formulas are used. A message one way takes launch_us + step_us + post_us + latency_us. Each message of a stream
// takes launch_us + step_us + post_us. A slot of a long call takes step_us + post_us + the time to move its bytes.
void fit_messages(const Times& times, const std::string& level, Parameters& p, MessageCost& cost) {
  const auto one_way = times.shortest(level + ".one_way", kShortBytes);
  const auto stream = times.shortest(level + ".stream", kShortBytes);
  if (one_way && stream) {
    // `busy` is at most 80% of the one-way time, so that some latency is left even if the measurements are noisy.
    const double busy = std::min(*stream, 0.8 * *one_way);
    cost.post_us = std::max(busy - p.launch_us - p.step_us, 0.01);
    cost.latency_us = std::max(*one_way - p.launch_us - p.step_us - cost.post_us, 0.01);
  }
  if (const auto slope = times.us_per_byte(level + ".one_way", kLongBytes / 2)) {
    const double slot_us = *slope * static_cast<double>(p.slot_bytes);
    const double move_us = std::max(slot_us - p.step_us - cost.post_us, slot_us / 4);
    cost.gbytes_per_s = std::min(static_cast<double>(p.slot_bytes) / move_us / 1e3, kFastest);
  }
}

// Computes the costs of direct access to another rank's memory, from all-reduces of two ranks. In an all-reduce, each
// rank loads half of the message from the other rank's memory, and stores half of the message to it.
void fit_windows(const Times& times, Parameters& p) {
  MessageCost& window = p.cost(Level::kMemory, Protocol::kWindow);
  if (const auto slope = times.us_per_byte("registered", kLongBytes / 4)) window.gbytes_per_s = 1e-3 / *slope;
  if (const auto shortest = times.shortest("registered", kLongBytes / 4)) {
    // Time of one of the two synchronizations of the call. The bytes take only a small part of the time.
    const double base = (*shortest - p.launch_us) / 2;
    window.latency_us = std::max(base - window.post_us, 0.01);
  }
  if (const auto slope = times.us_per_byte("attached", kLongBytes / 4)) p.attach_gbytes_per_s = 1e-3 / *slope;
}

void fit_mailboxes(const Times& times, std::uint32_t cores, Parameters& p) {
  MessageCost& line = p.cost(Level::kMemory, Protocol::kLl);
  const auto pair = times.shortest("mailboxes", kShortBytes);
  if (pair) line.latency_us = std::max(*pair - p.launch_us - 2 * line.post_us, 0.01);
  if (const auto slope = times.us_per_byte("mailboxes", 1024)) line.gbytes_per_s = std::min(1e-3 / *slope, kFastest);
  const auto crowd = times.shortest("mailboxes.crowd", UINT64_MAX);
  if (!crowd || !pair || cores == 0) return;
  // If there are more ranks than cores, every rank must run once in each call, so on some core `turns` ranks run one
  // after the other. If each rank has a core, the time of a handover cannot be measured.
  const std::uint64_t ranks = times.least_bytes("mailboxes.crowd");
  if (ranks <= cores) return;
  const std::uint64_t turns = (ranks + cores - 1) / cores;
  p.handover_us = std::max((*crowd - *pair) / static_cast<double>(turns), 0.05);
}

}  // namespace

Result<Parameters> fit_parameters(std::span<const Measurement> measured, std::uint32_t cores,
                                  std::uint64_t slot_bytes) {
  const Times times(measured);
  if (!times.shortest("memory.one_way", kShortBytes) || !times.us_per_byte("memory.one_way", kLongBytes / 2)) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 "memory.one_way was not measured, or not for short and for long messages"};
  }
  Parameters p = default_host_parameters(cores);
  p.slot_bytes = slot_bytes;
  if (const auto alone = times.shortest("alone", kShortBytes)) p.launch_us = *alone;
  if (const auto slope = times.us_per_byte("reduce", 0)) p.reduce_gbytes_per_s = 1e-3 / *slope;
  if (const auto slope = times.us_per_byte("copy", 0)) p.copy_gbytes_per_s = 1e-3 / *slope;
  fit_messages(times, "memory", p, p.cost(Level::kMemory, Protocol::kSimple));
  fit_messages(times, "nic", p, p.cost(Level::kNic, Protocol::kSimple));
  p.cost(Level::kSpine, Protocol::kSimple) = p.cost(Level::kNic, Protocol::kSimple);
  p.cost(Level::kSpine, Protocol::kSimple).latency_us += 1;  // 1 us for two more switches; guessed
  fit_windows(times, p);
  fit_mailboxes(times, cores, p);
  round_all(p);
  p.measured.assign(measured.begin(), measured.end());
  return p;
}

double noise_of(std::span<const Measurement> measured) {
  std::vector<double> ratios;
  for (const Measurement& one : measured) {
    if (one.what.find(kChoiceMark) != std::string::npos) continue;
    if (one.median_us > 0) ratios.push_back(one.p95_us / one.median_us);
  }
  if (ratios.empty()) return 1;
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  return *middle;
}

}  // namespace tutti
