// The meaning of NCCL's environment variables for Tutti. The variables have NCCL's syntax. docs/nccl-environment.md
// contains the table for users; a test compares it with this code.
//
// The value of a variable comes from the first of these sources that sets it: the environment of the process; the file
// that NCCL_CONF_FILE names (~/.nccl.conf if that variable is not set); /etc/nccl.conf. An empty variable counts as not
// set. If a value is invalid, there is usually a warning, and the default is used or, for a number outside its range,
// the nearest valid number. If NCCL refuses to start because of a value, Tutti refuses as well. read_settings() depends
// only on its arguments. All functions may be called from any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "bootstrap/interfaces.h"
#include "nccl/environment/counterparts.h"
#include "nccl/environment/parse.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

// The default timeouts of the NCCL interface: 24 hours without progress for a call, 30 minutes for set-up. NCCL has no
// timeouts, and programs rely on that: a checkpoint or a compilation on one rank can delay the others by many minutes.
// Tutti has a limit nevertheless, so that a job ends eventually if a rank hangs. TUTTI_TIMEOUT_MS and
// TUTTI_SETUP_TIMEOUT_MS take precedence.
inline constexpr std::chrono::hours kDefaultTimeout(24);
inline constexpr std::chrono::minutes kDefaultSetupTimeout(30);
// The two default timeouts as TUTTI_* variables.
inline Variables default_timeouts() {
  const auto text = [](std::chrono::milliseconds timeout) { return std::to_string(timeout.count()); };
  return {{"TUTTI_TIMEOUT_MS", text(kDefaultTimeout)}, {"TUTTI_SETUP_TIMEOUT_MS", text(kDefaultSetupTimeout)}};
}

// An NCCL_* variable that is set and has a meaning for Tutti, with the value that is used. This can differ from the
// value that was set, for example if that was out of range.
struct TakenVariable {
  std::string name;
  std::string text;
  std::optional<std::int64_t> number;  // the same value; nothing if the variable is not a number
};

// For each collective of kFunctionNames, a bit for each algorithm or protocol that may be used.
using AllowedBits = std::array<std::uint32_t, kListedFunctions>;
constexpr AllowedBits all_allowed(std::uint32_t bits) {
  AllowedBits allowed{};
  allowed.fill(bits);
  return allowed;
}

struct EnvironmentSettings {
  // TUTTI_* variables that follow from the NCCL_* variables. A TUTTI_* variable in the process's environment takes
  // precedence over the entry of the same name.
  Variables overlay;

  // NCCL_COMM_BLOCKING; nothing: not set, or invalid. If it has a value, ncclConfig_t::blocking is ignored.
  std::optional<bool> blocking;
  std::optional<std::int32_t> min_ctas;  // NCCL_MIN_CTAS, or its older names; 1 .. 64; nothing: none is used
  // NCCL_MAX_CTAS, or its older names; 1 .. 64, not less than min_ctas. If it has a value, ncclConfig_t::maxCTAs is
  // ignored.
  std::optional<std::int32_t> max_ctas;
  // NCCL_COMM_ID, "host:port": the ranks of ncclCommInitRank() and its variants meet there instead of through the
  // unique id. ncclCommGrow() still uses its unique id. Empty: not set.
  std::string root;
  std::array<Algorithm, 10> algorithms{};  // from NCCL_ALGO, by CollectiveKind; kAuto: Tutti chooses
  // NCCL_ALGO and NCCL_PROTO as bits, for tuner plugins; all bits: the variable is not set.
  AllowedBits allowed_algorithms = all_allowed(kAllAlgorithms);
  AllowedBits allowed_protocols = all_allowed(kAllProtocols);
  // NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN as they were set (plugins/plugin_file.h has their meaning); nothing: not
  // set.
  std::optional<std::string> tuner_plugin;
  std::optional<std::string> profiler_plugin;
  std::int32_t version = Config().nccl_version;  // TUTTI_NCCL_VERSION
  bool prints_version = false;                   // NCCL_DEBUG requests that the version is printed
  bool all_parameters = false;                   // NCCL_PARAM_DUMP_ALL: TUTTI_* variables are listed as well

  std::vector<TakenVariable> taken;
  // "NAME=VALUE has no effect: reason": one for each variable that why_ignored() reports, and one for NCCL_P2P_LEVEL if
  // its value has no effect.
  std::vector<std::string> ignored;
  std::vector<std::string> warnings;  // for example for a value that was invalid or was changed
};

// The functions through which read_settings() uses the system; tests replace them. read_settings() calls `interfaces`
// only if a variable selects network interfaces.
struct SystemAccess {
  // Returns the content of a configuration file, or nothing if the file cannot be read.
  std::function<std::optional<std::string>(const std::string& path)> read_file;
  std::function<Result<std::vector<InterfaceAddress>>()> interfaces;
};

inline constexpr std::size_t kMostConfBytes = 64 * 1024;  // only the first 64 KiB of a configuration file are read
// The access to the real system.
SystemAccess this_machine();

// Interprets the variables. Errors (kConfig), in the same cases in which NCCL refuses to start: NCCL_ALGO or NCCL_PROTO
// that parse_allowed_values() refuses, NCCL_COMM_ID that is not an address, NCCL_SOCKET_IFNAME or NCCL_SOCKET_FAMILY
// that matches no interface. Other errors: an invalid TUTTI_NCCL_VERSION or TUTTI_SLOTS, those of
// host_access.interfaces().
Result<EnvironmentSettings> read_settings(const EnvironmentVariables& environment, const SystemAccess& host_access);

// Logs the result of read_settings() for the user: the version, if NCCL_DEBUG requests it; each warning; and the
// variables without effect, as one line with their names, and at LogLevel::kInfo also one line with the reason for
// each. A line for a variable is a warning if the name looks misspelt. To be called once in a process.
void report(const EnvironmentSettings& settings, const Log& log);

// The result of read_settings() for the environment of this process. The environment is read once, at the first call,
// because all of NCCL's functions must use the same values and have no object that could hold them. The reference stays
// valid until the process exits.
const Result<EnvironmentSettings>& process_settings();

}  // namespace tutti::nccl
