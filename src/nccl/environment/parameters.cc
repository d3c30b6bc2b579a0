#include "nccl/environment/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "nccl/environment/names.h"

namespace tutti::nccl {
namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

Parameter mapped(std::string_view name, const EnvironmentSettings& settings) {
  Parameter parameter{.name = std::string(name), .text = {}, .number = {}, .is_published = true};
  for (const TakenVariable& taken : settings.taken) {
    if (taken.name != name) continue;
    parameter.text = taken.text;
    parameter.number = taken.number;
  }
  return parameter;
}

Result<Parameters> make_parameters() {
  const auto& settings = process_settings();
  if (!settings) return settings.error();
  const Variables defaults = with_defaults(settings->overlay, default_timeouts());
  const auto config = parse_config(with_defaults(environment_variables(), defaults));
  if (!config) return config.error();
  return Parameters(*settings, *config);
}

}  // namespace

Parameters::Parameters(const EnvironmentSettings& settings, const Config& config) {
  for (const std::string_view name : mapped_names()) all_.push_back(mapped(name, settings));
  for (ConfigValue& value : config_values(config)) {
    all_.push_back({.name = std::string(value.name),
                    .text = std::move(value.text),
                    .number = value.number,
                    .is_hidden = value.is_hidden});
  }
  std::sort(all_.begin(), all_.end(), [](const Parameter& a, const Parameter& b) { return a.name < b.name; });
  for (const Parameter& one : all_) {
    if (one.is_published || settings.all_parameters) listed_.push_back(&one);
  }
}

const Parameter* Parameters::find(std::string_view name) const {
  const auto found = std::lower_bound(all_.begin(), all_.end(), name,
                                      [](const Parameter& one, std::string_view wanted) { return one.name < wanted; });
  return found != all_.end() && found->name == name ? &*found : nullptr;
}

bool Parameters::holds(const Parameter* parameter) const {
  return std::any_of(all_.begin(), all_.end(), [&](const Parameter& one) { return &one == parameter; });
}

Result<std::int64_t> number_between(const Parameter& parameter, std::int64_t low, std::int64_t high) {
  if (!parameter.number) {
    return invalid(parameter.text.empty() ? fmt::format("{} is not set: Tutti decides", parameter.name)
                                          : fmt::format("{}=\"{}\" is not a number", parameter.name, parameter.text));
  }
  if (*parameter.number < low || *parameter.number > high) {
    return invalid(fmt::format("{}={} is outside {} to {}, the range of the type: read it with a wider type",
                               parameter.name, *parameter.number, low, high));
  }
  return *parameter.number;
}

std::string bytes_of(const Parameter& parameter) {
  if (!parameter.number) return parameter.text + '\0';
  std::string bytes(sizeof(*parameter.number), '\0');
  std::memcpy(bytes.data(), &*parameter.number, bytes.size());
  return bytes;
}

std::string dump(const Parameters& parameters) {
  std::string text;
  for (const Parameter* one : parameters.listed()) {
    text += one->is_hidden      ? fmt::format("tutti: {} is set (secret)\n", one->name)
            : one->text.empty() ? fmt::format("tutti: {} is not set\n", one->name)
                                : fmt::format("tutti: {}={}\n", one->name, one->text);
  }
  return text;
}

const Result<Parameters>& process_parameters() {
  // Never destroyed, because threads may ask for it while the process exits.
  static const auto& parameters = *new Result<Parameters>(make_parameters());
  return parameters;
}

}  // namespace tutti::nccl
