#include "base/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/recording.h"

extern "C" char** environ;  // NOLINT: POSIX prescribes this declaration

namespace tutti {
namespace {

Error bad_value(std::string_view name, std::string_view value, std::string_view wanted) {
  return {ErrorCode::kConfig, ErrorScope::kCall, -1,
          fmt::format("{}=\"{}\" is not valid: give {}", name, value, wanted)};
}

Result<std::int64_t> parse_integer(std::string_view name, std::string_view value, std::int64_t low, std::int64_t high) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < low || number > high) {
    return bad_value(name, value, fmt::format("a whole number from {} to {}", low, high));
  }
  return number;
}

// Returns the value of one variable; the field `name` is left empty.
using Getter = std::function<ConfigValue(const Config&)>;
using Setter = std::function<Status(Config&, std::string_view name, std::string_view value)>;

struct Variable {
  Setter set;
  Getter get;
};

ConfigValue of_text(std::string_view text) { return {.name = {}, .text = std::string(text), .number = {}}; }
ConfigValue of_number(std::int64_t number) { return {.name = {}, .text = std::to_string(number), .number = number}; }

template <class Field>
Variable integer(Field Config::*field, std::int64_t low, std::int64_t high, std::int64_t multiple_of = 1) {
  Setter set = [=](Config& config, std::string_view name, std::string_view value) -> Status {
    auto number = parse_integer(name, value, low, high);
    if (!number) return number.error();
    if (*number % multiple_of != 0) return bad_value(name, value, fmt::format("a multiple of {}", multiple_of));
    if constexpr (std::is_same_v<Field, std::optional<std::int32_t>>) {
      config.*field = static_cast<std::int32_t>(*number);
    } else {
      config.*field = Field(*number);
    }
    return {};
  };
  Getter get = [field](const Config& config) {
    const Field& value = config.*field;
    if constexpr (std::is_same_v<Field, std::optional<std::int32_t>>) {
      return value ? of_number(*value) : ConfigValue{};
    } else if constexpr (std::is_same_v<Field, std::chrono::milliseconds>) {
      return of_number(value.count());
    } else {
      return of_number(static_cast<std::int64_t>(value));
    }
  };
  return {std::move(set), std::move(get)};
}

Variable text(std::string Config::*field, std::size_t longest) {
  Setter set = [=](Config& config, std::string_view name, std::string_view value) -> Status {
    if (value.empty() || value.size() > longest)
      return bad_value(name, value, fmt::format("1 to {} characters", longest));
    config.*field = value;
    return {};
  };
  return {std::move(set), [field](const Config& config) { return of_text(config.*field); }};
}

// A text that must not appear in error messages or in listings of the settings.
Variable secret(std::string Config::*field, std::size_t longest) {
  Setter set = [=](Config& config, std::string_view name, std::string_view value) -> Status {
    if (value.empty() || value.size() > longest) {
      return Error{ErrorCode::kConfig, ErrorScope::kCall, -1,
                   fmt::format("{} is not valid: give 1 to {} characters", name, longest)};
    }
    config.*field = value;
    return {};
  };
  return {std::move(set), [field](const Config& config) {
            ConfigValue value;
            value.is_hidden = !(config.*field).empty();
            return value;
          }};
}

// The names of the enumerators as in the variables, indexed by the number of the enumerator.
constexpr std::array<std::string_view, 5> kLevels = {"off", "error", "warn", "info", "debug"};
constexpr std::array<std::string_view, 3> kAttach = {"off", "calls", "auto"};
constexpr std::array<std::string_view, 2> kDeviceCalls = {"auto", "staged"};
constexpr std::array<std::string_view, 4> kProtocols = {"auto", "simple", "ll", "ll128"};

template <class Policy, std::size_t kCount>
std::optional<Policy> parse_keyword(std::string_view name, const std::array<std::string_view, kCount>& keywords) {
  const auto found = std::find(keywords.begin(), keywords.end(), name);
  if (found == keywords.end()) return std::nullopt;
  return static_cast<Policy>(found - keywords.begin());
}

template <class Field, std::size_t kCount>
Variable keyword(Field Config::*field, const std::array<std::string_view, kCount>& keywords) {
  Setter set = [field, &keywords](Config& config, std::string_view name, std::string_view value) -> Status {
    const auto parsed = parse_keyword<Field>(value, keywords);
    if (!parsed) {
      const std::span all(keywords);
      return bad_value(name, value, fmt::format("{} or {}", fmt::join(all.first(kCount - 1), ", "), all.back()));
    }
    config.*field = *parsed;
    return {};
  };
  Getter get = [field, &keywords](const Config& config) {
    return of_text(keywords[static_cast<std::size_t>(config.*field)]);
  };
  return {std::move(set), std::move(get)};
}

Status set_record(Config& config, std::string_view name, std::string_view value) {
  const auto wrong = [&] {
    return bad_value(name, value, "0 for none, or how many operations are remembered: a power of two from 16 to 65536");
  };
  const auto number = parse_integer(name, value, 0, recording::kMostCapacity);
  if (!number) return wrong();
  const auto capacity = static_cast<std::uint32_t>(*number);
  if (capacity != 0 && (capacity < recording::kLeastCapacity || !std::has_single_bit(capacity))) return wrong();
  config.record = capacity;
  return {};
}

Status set_port_range(Config& config, std::string_view name, std::string_view value) {
  const std::size_t dash = value.find('-');
  if (dash == std::string_view::npos) return bad_value(name, value, "first-last, such as 30000-30100");
  const auto first = parse_integer(name, value.substr(0, dash), 1, 65535);
  const auto last = parse_integer(name, value.substr(dash + 1), 1, 65535);
  if (!first || !last || *first > *last) {
    return bad_value(name, value, "first-last, two ports from 1 to 65535 in rising order");
  }
  config.port_range = {static_cast<std::uint16_t>(*first), static_cast<std::uint16_t>(*last)};
  return {};
}

ConfigValue port_range_value(const Config& config) {
  if (config.port_range.any()) return {};
  return of_text(fmt::format("{}-{}", config.port_range.first, config.port_range.last));
}

// Accepts "2.28.9", or the number that NCCL makes of a version: 22809. Up to version 2.8 the minor version had one
// digit, for example 2804 for 2.8.4.
Status set_nccl_version(Config& config, std::string_view name, std::string_view value) {
  const auto wrong = [&] { return bad_value(name, value, "a version such as 2.28.9, or its number, 22809"); };
  std::array<std::int64_t, 3> parts{};
  std::size_t count = 0;
  std::string_view rest = value;
  while (count < parts.size()) {
    const std::size_t dot = rest.find('.');
    const auto part = parse_integer(name, rest.substr(0, dot), 0, 99'999);
    if (!part) return wrong();
    parts[count++] = *part;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
    if (count == parts.size()) return wrong();
  }
  if (count == 1 && parts[0] >= 2000) {
    config.nccl_version = static_cast<std::int32_t>(parts[0]);
    return {};
  }
  const auto [major, minor, patch] = parts;
  if (count != 3 || major < 2 || major > 9 || minor > 99 || patch > 99) return wrong();
  const bool one_digit = major == 2 && minor <= 8;
  config.nccl_version = static_cast<std::int32_t>(major * (one_digit ? 1000 : 10'000) + minor * 100 + patch);
  return {};
}

ConfigValue nccl_version_value(const Config& config) { return of_number(config.nccl_version); }

const std::map<std::string, Variable, std::less<>>& all_variables() {
  constexpr std::int64_t kDayMs = 86'400'000;
  // Never destroyed, because other threads may still create communicators while the process exits.
  static const auto& variables = *new std::map<std::string, Variable, std::less<>>{
      {"TUTTI_RANK", integer(&Config::rank, 0, 65534)},
      {"TUTTI_WORLD_SIZE", integer(&Config::size, 1, 65535)},
      {"TUTTI_LOCAL_RANK", integer(&Config::local_rank, 0, 65534)},
      {"TUTTI_LOCAL_SIZE", integer(&Config::local_size, 1, 65535)},
      {"TUTTI_ROOT", text(&Config::root, 256)},
      {"TUTTI_ROOT_FD", integer(&Config::root_fd, 0, 1 << 20)},
      {"TUTTI_ELASTIC_FD", integer(&Config::elastic_fd, 0, 1 << 20)},
      {"TUTTI_JOB_ID", text(&Config::job_id, 128)},
      {"TUTTI_JOB_KEY_FILE", text(&Config::job_key_file, 4096)},
      {"TUTTI_JOB_KEY", secret(&Config::job_key, 8192)},
      {"TUTTI_UNIQUE_ID", secret(&Config::unique_id, 256)},
      {"TUTTI_INTERFACE", text(&Config::interface, 256)},
      {"TUTTI_PORT_RANGE", {set_port_range, port_range_value}},
      {"TUTTI_TRANSPORT", keyword(&Config::transport, kTransportNames)},
      {"TUTTI_ENCRYPT", integer(&Config::encrypt, 0, 1)},
      {"TUTTI_ATTACH", keyword(&Config::attach, kAttach)},
      {"TUTTI_RDMA_DEVICES", text(&Config::rdma_devices, 1024)},
      {"TUTTI_RDMA_GID_INDEX", integer(&Config::rdma_gid_index, 0, 255)},
      {"TUTTI_RDMA_QUEUE_PAIRS", integer(&Config::rdma_queue_pairs, 1, 8)},
      {"TUTTI_RDMA_TIMEOUT", integer(&Config::rdma_timeout, 1, 31)},
      {"TUTTI_RDMA_RETRIES", integer(&Config::rdma_retries, 0, 7)},
      {"TUTTI_RDMA_TRAFFIC_CLASS", integer(&Config::rdma_traffic_class, 0, 255)},
      {"TUTTI_RDMA_SERVICE_LEVEL", integer(&Config::rdma_service_level, 0, 15)},
      {"TUTTI_RDMA_CACHE_MIB", integer(&Config::rdma_cache_mib, 0, 1 << 20)},
      {"TUTTI_RDMA_WRITE_OUTPUTS", integer(&Config::rdma_write_outputs, 0, 1)},
      {"TUTTI_NODE_ID", text(&Config::node_id, 64)},
      {"TUTTI_UNIFORM", keyword(&Config::uniform, kUniformNames)},
      {"TUTTI_CHECKSUM", integer(&Config::checksum, 0, 1)},
      {"TUTTI_SETUP_TIMEOUT_MS", integer(&Config::setup_timeout, 1, kDayMs)},
      {"TUTTI_TIMEOUT_MS", integer(&Config::timeout, 1, kDayMs)},
      {"TUTTI_SLOT_BYTES", integer(&Config::slot_bytes, kSlotUnit, kMostSlotBytes, kSlotUnit)},
      {"TUTTI_SLOTS", integer(&Config::slots, 2, 64)},
      {"TUTTI_DEVICE_CALLS", keyword(&Config::device_calls, kDeviceCalls)},
      {"TUTTI_DEVICE_BLOCKS", integer(&Config::device_blocks, 1, 64)},
      {"TUTTI_DEVICE_THREADS", integer(&Config::device_threads, 32, 512, 32)},
      {"TUTTI_DEVICE_SLOT_BYTES", integer(&Config::device_slot_bytes, kSlotUnit, kMostSlotBytes, kSlotUnit)},
      {"TUTTI_DEVICE_COPIES", integer(&Config::device_copies, 0, 1 << 30)},
      {"TUTTI_DEVICE_PROTOCOL", keyword(&Config::device_protocol, kProtocols)},
      {"TUTTI_TUNE", text(&Config::tune, 1024)},
      {"TUTTI_TUNE_FILE", text(&Config::tune_file, 4096)},
      {"TUTTI_MEASURE", integer(&Config::measure, 0, 1)},
      {"TUTTI_SELFTEST", integer(&Config::selftest, 0, 1)},
      {"TUTTI_VERIFY_PLANS", integer(&Config::verify_plans, 0, 1)},
      {"TUTTI_LOG", keyword(&Config::log_level, kLevels)},
      {"TUTTI_RECORD", {set_record, [](const Config& config) { return of_number(config.record); }}},
      {"TUTTI_RECORD_DIR", text(&Config::record_dir, 4096)},
      {"TUTTI_NCCL_VERSION", {set_nccl_version, nccl_version_value}},
  };
  return variables;
}

// The edit distance of two names: the least number of edits that change one into the other. An edit inserts, deletes or
// replaces one character, or swaps two neighbouring characters, which no other edit may then change.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  std::vector<std::size_t> above = row;      // the row of the previous character of `a`
  std::vector<std::size_t> two_above = row;  // the row of the character before that one
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_above.swap(above);
    above = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<TransportPolicy> parse_transport(std::string_view name) {
  return parse_keyword<TransportPolicy>(name, kTransportNames);
}

std::optional<DevicePolicy> parse_device_calls(std::string_view name) {
  return parse_keyword<DevicePolicy>(name, kDeviceCalls);
}

std::optional<AttachPolicy> parse_attach(std::string_view name) { return parse_keyword<AttachPolicy>(name, kAttach); }

EnvironmentVariables process_environment() {
  EnvironmentVariables environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    // If a name occurs twice, the first entry is kept, as getenv() does.
    environment.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return environment;
}

Variables with_defaults(Variables own, const Variables& defaults) {
  for (const auto& one : defaults) {
    const auto same = [&](const auto& other) { return other.first == one.first; };
    if (std::none_of(own.begin(), own.end(), same)) own.push_back(one);
  }
  return own;
}

Variables environment_variables() {
  Variables variables;
  for (const auto& [name, value] : process_environment()) {
    if (name.starts_with("TUTTI_")) variables.emplace_back(name, value);
  }
  return variables;
}

std::vector<std::string_view> config_variable_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, variable] : all_variables()) names.emplace_back(name);
  return names;
}

std::vector<ConfigValue> config_values(const Config& config) {
  std::vector<ConfigValue> values;
  for (const auto& [name, variable] : all_variables()) {
    values.push_back(variable.get(config));
    values.back().name = name;
  }
  return values;
}

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = name.size() / 3 + 1;
  for (std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

Result<Config> parse_config(const Variables& variables) {
  Config config;
  for (const auto& [name, value] : variables) {
    // These variables are for test programs. The ranks that a test program starts inherit them and ignore them here.
    if (name.starts_with("TUTTI_TEST_")) continue;
    const auto known = all_variables().find(name);
    if (known == all_variables().end()) {
      const std::string_view nearest = nearest_name(name, config_variable_names());
      return Error{ErrorCode::kConfig, ErrorScope::kCall, -1,
                   nearest.empty()
                       ? fmt::format("unknown variable {}: unset it (docs/config.md lists the known ones)", name)
                       : fmt::format("unknown variable {}: did you mean {}? Rename or unset it", name, nearest)};
    }
    TUTTI_TRY(known->second.set(config, name, value));
  }
  return config;
}

}  // namespace tutti
