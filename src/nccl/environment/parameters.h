// The parameters that NCCL's parameter functions (ncclParamBind() and others) report: the NCCL_* variables that Tutti
// maps, and all TUTTI_* variables, with the values in effect (of secrets without the value). They are read once, and
// the table never changes after that. All functions may be called from any thread.
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
  std::string text;                    // the value; empty: not set, so that Tutti decides, or a secret
  std::optional<std::int64_t> number;  // the value if it is a number; nothing: no number, not set, or a secret
  bool is_hidden = false;              // a secret that has a value
  bool is_published = false;           // listed even without NCCL_PARAM_DUMP_ALL; true for NCCL_* variables only
};

class Parameters {
 public:
  Parameters(const EnvironmentSettings& settings, const Config& config);
  // Movable but not copyable, because the pointers in listed_ of a copy would point into the original's all_.
  Parameters(Parameters&&) = default;
  Parameters& operator=(Parameters&&) = default;

  // Returns the parameter with that name, or null if there is none. Finds parameters that are not listed, too.
  const Parameter* find(std::string_view name) const;
  // Whether `parameter` points to a parameter of this object, so that it can be a result of find().
  bool holds(const Parameter* parameter) const;
  // The parameters to list, sorted by name. Without NCCL_PARAM_DUMP_ALL these are only the published ones.
  std::span<const Parameter* const> listed() const { return listed_; }

 private:
  std::vector<Parameter> all_;  // sorted by name
  std::vector<const Parameter*> listed_;
};

// The value of a parameter that is a number from `low` to `high` (both included), and no secret. Errors
// (kInvalidArgument): the parameter is not set, is not a number, or is out of range.
Result<std::int64_t> number_between(const Parameter& parameter, std::int64_t low, std::int64_t high);

// The value as the bytes that ncclParamGet() returns: a number as an 8-byte std::int64_t; a text with a terminating
// zero byte; a single zero byte if `text` is empty.
std::string bytes_of(const Parameter& parameter);

// The text that ncclParamDumpAll() prints: a line for each parameter in listed().
std::string dump(const Parameters& parameters);

// The parameters of this process: the NCCL_* variables that process_settings() has taken, and all TUTTI_* variables.
// The value of a TUTTI_* variable is that of the process's environment, otherwise that of process_settings(), otherwise
// that of default_timeouts(), otherwise the default in Config. Created once, at the first call, because all functions
// must use the same values. Errors: those of process_settings() and parse_config().
const Result<Parameters>& process_parameters();

}  // namespace tutti::nccl
