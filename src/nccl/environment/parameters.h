// The settings in effect as NCCL's parameter functions show them: the NCCL_* variables that Tutti maps, and all
// TUTTI_* ones. Values, in one table that never changes. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "nccl/environment/environment.h"
#include "tutti/result.h"

namespace tutti::nccl {

struct Parameter {
  std::string name;
  std::string text;                    // empty: not set, Tutti decides
  std::optional<std::int64_t> number;  // of those that are numbers, and set
  bool is_published = false;           // shown without NCCL_PARAM_DUMP_ALL
};

class Parameters {
 public:
  Parameters(const EnvironmentSettings& settings, const Config& config);
  Parameters(Parameters&&) = default;  // a copy's pointers would be the original's
  Parameters& operator=(Parameters&&) = default;

  // Null where there is no such name.
  const Parameter* find(std::string_view name) const;
  // Whether the pointer is one that find() has given.
  bool holds(const Parameter* parameter) const;
  // Sorted by name; the published ones alone where NCCL_PARAM_DUMP_ALL is not set.
  std::span<const Parameter* const> shown() const { return shown_; }

 private:
  std::vector<Parameter> all_;  // sorted by name
  std::vector<const Parameter*> shown_;
};

// The value between two bounds. Errors (kInvalidArgument): a text, not set, outside.
Result<std::int64_t> number_between(const Parameter& parameter, std::int64_t low, std::int64_t high);

// The value's bytes: those of a number as std::int64_t; of a text its characters and a zero; of what is not set a zero.
std::string bytes_of(const Parameter& parameter);

// What ncclParamDumpAll() writes: a line for each that is shown.
std::string dump(const Parameters& parameters);

// Of this process, from process_settings() and what its TUTTI_* variables say over it; made at the first call, for the
// reason that stands there. Errors: as process_settings() and parse_config().
const Result<Parameters>& process_parameters();

}  // namespace tutti::nccl
