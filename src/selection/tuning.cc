#include "selection/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/assert.h"
#include "model/calibration.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostCostBytes = kMostTuningBytes - kMostOverrideBytes - 64;

// JSON text of the parameters without spaces and without the descriptive fields. The costs of a few levels take
// about 1,000 bytes.
std::string compact(Parameters parameters) {
  parameters.name.clear();
  parameters.source.clear();
  parameters.hardware.clear();
  parameters.measured.clear();
  std::string text = to_json(parameters);
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

Error refused(std::string message) {
  return {ErrorCode::kRefused, ErrorScope::kCommunicator, 0, "rank 0's tuning cannot be read: " + std::move(message)};
}

}  // namespace

Result<Tuning> own_tuning(const Config& config, std::uint32_t cpu_limit, const Log& log) {
  Tuning tuning{.parameters = default_host_parameters(cpu_limit)};
  auto rules = parse_overrides(config.tune, config.slot_bytes_or(kSlotBytes));
  if (!rules) return rules.error();
  tuning.overrides = *std::move(rules);
  tuning.rules = config.tune;
  auto stored = load_calibration(config.tune_file, process_environment());
  if (!stored) {
    log.write(LogLevel::kWarn, "{}; using default costs: run `tutti tune`, or remove the file", stored.error().message);
  } else if (!*stored) {
    log.write(LogLevel::kInfo, "this machine has not been measured: using default costs; run `tutti tune` once");
  } else if (compact(**stored).size() > kMostCostBytes) {
    log.write(LogLevel::kWarn, "the measured costs take more than {} bytes; using default costs", kMostCostBytes);
  } else {
    tuning.parameters = **std::move(stored);
    tuning.parameters.cores = cpu_limit;
    tuning.parameters.measured.clear();
    tuning.measured = true;
    log.write(LogLevel::kInfo, "measured costs: {}, {}", tuning.parameters.name, tuning.parameters.source);
  }
  return tuning;
}

MachineChoices choices_of(const Tuning* tuning, std::uint32_t ranks, std::uint32_t cores) {
  if (tuning == nullptr) return default_choices(ranks, cores);
  return choices_for(tuning->parameters.choices, ranks, cores);
}

std::string pack(const Tuning& tuning) {
  const std::string costs = tuning.measured ? compact(tuning.parameters) : std::to_string(tuning.parameters.cores);
  std::string text = fmt::format("{}|{}", tuning.rules, costs);
  TUTTI_ASSERT(text.size() <= kMostTuningBytes);
  return text;
}

Result<Tuning> unpack(std::string_view text) {
  const std::size_t bar = text.find('|');
  if (bar == std::string_view::npos) return refused("no costs");
  auto rules = parse_overrides(text.substr(0, bar));
  if (!rules) return refused(rules.error().message);
  const std::string_view costs = text.substr(bar + 1);
  Tuning tuning{.rules = std::string(text.substr(0, bar)), .overrides = *std::move(rules)};
  if (costs.starts_with('{')) {
    auto parameters = parse_parameters(costs);
    if (!parameters) return refused(parameters.error().message);
    tuning.parameters = *std::move(parameters);
    tuning.measured = true;
    return tuning;
  }
  std::uint32_t cores = 0;
  const auto [end, error] = std::from_chars(costs.data(), costs.data() + costs.size(), cores);
  if (error != std::errc() || end != costs.data() + costs.size()) return refused("no number of cores");
  tuning.parameters = default_host_parameters(cores);
  return tuning;
}

}  // namespace tutti::detail
