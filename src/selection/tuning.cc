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
  } else if (*stored) {
    Tuning with_file = tuning;
    with_file.measured = has_costs(**stored);
    if (with_file.measured) {
      with_file.parameters = **std::move(stored);
      with_file.parameters.cores = cpu_limit;
      with_file.parameters.measured.clear();
    } else {
      with_file.parameters.choices = std::move((*stored)->choices);
    }
    const Status fits = check_size(with_file);
    if (fits.ok()) tuning = std::move(with_file);
    if (!fits.ok())
      log.write(LogLevel::kWarn, "{}; using default costs and choices: run `tutti tune`, or remove the file",
                fits.error().message);
  }
  if (tuning.measured) {
    log.write(LogLevel::kInfo, "measured costs: {}, {}", tuning.parameters.name, tuning.parameters.source);
  } else {
    log.write(LogLevel::kInfo,
              "the costs of this machine have not been measured: using default costs; run `tutti tune` once");
  }
  return tuning;
}

Status add_choices(const std::string& path, const RankChoices& choices, const EnvironmentVariables& environment) {
  auto stored = load_calibration("", environment);
  if (!stored) return stored.error();
  Parameters parameters{.name = "choices inside a machine", .source = "the first jobs", .hardware = hardware_hash()};
  if (*stored) parameters = **std::move(stored);
  if (has_choices(parameters.choices, choices.ranks, choices.cores)) return {};  // another job has added them first
  if (parameters.choices.size() >= kMostRankChoices) {  // the caller has checked this, but perhaps without a lock
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, path + " has choices for enough numbers of ranks"};
  }
  parameters.choices.push_back(choices);
  return store_calibration(path, parameters);
}

MachineChoices choices_of(const Tuning* tuning, std::uint32_t ranks, std::uint32_t cores) {
  if (tuning == nullptr) return default_choices(ranks, cores);
  return choices_for(tuning->parameters.choices, ranks, cores);
}

Status check_size(const Tuning& tuning) {
  if (compact(tuning.parameters).size() <= kMostCostBytes) return {};
  return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
               fmt::format("the measured costs and choices take more than {} bytes", kMostCostBytes)};
}

std::string pack(const Tuning& tuning) {
  const bool defaults = !tuning.measured && tuning.parameters.choices.empty();
  const std::string costs = defaults ? std::to_string(tuning.parameters.cores) : compact(tuning.parameters);
  std::string text = fmt::format("{}|{}{}|{}", tuning.rules, tuning.measured ? 1 : 0, tuning.measure ? 1 : 0, costs);
  TUTTI_ASSERT(text.size() <= kMostTuningBytes);
  return text;
}

Result<Tuning> unpack(std::string_view text) {
  const std::size_t bar = text.find('|');
  if (bar == std::string_view::npos || text.size() < bar + 4 || text[bar + 3] != '|') return refused("no costs");
  auto rules = parse_overrides(text.substr(0, bar));
  if (!rules) return refused(rules.error().message);
  const std::string_view flags = text.substr(bar + 1, 2);
  const std::string_view costs = text.substr(bar + 4);
  if (flags.find_first_not_of("01") != flags.npos) return refused("no flags");
  Tuning tuning{.rules = std::string(text.substr(0, bar)),
                .overrides = *std::move(rules),
                .measured = flags[0] == '1',
                .measure = flags[1] == '1'};
  if (costs.starts_with('{')) {
    auto parameters = parse_parameters(costs);
    if (!parameters) return refused(parameters.error().message);
    tuning.parameters = *std::move(parameters);
    return tuning;
  }
  std::uint32_t cores = 0;
  const auto [end, error] = std::from_chars(costs.data(), costs.data() + costs.size(), cores);
  if (error != std::errc() || end != costs.data() + costs.size()) return refused("no number of cores");
  tuning.parameters = default_host_parameters(cores);
  return tuning;
}

}  // namespace tutti::detail
