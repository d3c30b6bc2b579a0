// The settings in effect, for NCCL's parameter functions: the NCCL_* variables that Tutti maps, and all TUTTI_*
// variables. They are values in one table that never changes. All functions may be called from any thread.
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
  std::optional<std::int64_t> number;  // if it is set and a number
  bool is_published = false;           // shown without NCCL_PARAM_DUMP_ALL
};

class Parameters {
 public:
  Parameters(const EnvironmentSettings& settings, const Config& config);
  Parameters(Parameters&&) = default;  // movable only: the pointers in listed_ of a copy would point into the original
  Parameters& operator=(Parameters&&) = default;

  // Returns null if there is no such name.
  const Parameter* find(std::string_view name) const;
  // Whether find() can have returned this pointer.
  bool holds(const Parameter* parameter) const;
  // The parameters to list, sorted by name. Without NCCL_PARAM_DUMP_ALL these are only the published ones.
  std::span<const Parameter* const> listed() const { return listed_; }

 private:
  std::vector<Parameter> all_;  // sorted by name
  std::vector<const Parameter*> listed_;
};

// The value, which must be from `low` to `high`. Errors (kInvalidArgument): the parameter is not set, is not a number,
// or is out of range.
Result<std::int64_t> number_between(const Parameter& parameter, std::int64_t low, std::int64_t high);

// The bytes of the value: a number as std::int64_t; a text with a terminating zero; a single zero if it is not set.
std::string bytes_of(const Parameter& parameter);

// The text that ncclParamDumpAll() prints: a line for each parameter in listed().
std::string dump(const Parameters& parameters);

// The parameters of this process: process_settings(), overridden by its TUTTI_* variables. Created at the first call,
// because all functions must use the same values. Errors: as process_settings() and parse_config().
const Result<Parameters>& process_parameters();

}  // namespace tutti::nccl
