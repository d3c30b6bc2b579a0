// The meaning of NCCL's environment variables for Tutti. The variables have NCCL's syntax. docs/nccl-environment.md
// contains the table for users; a test compares it with this code.
//
// A variable is taken from the environment of the process, otherwise from the file that NCCL_CONF_FILE names
// (~/.nccl.conf if that is not set), otherwise from /etc/nccl.conf. An empty variable counts as not set. If a value is
// invalid, there is a warning and the default is used, as in NCCL. If NCCL refuses to start because of a value, Tutti
// refuses as well. read_settings() depends only on its arguments. All functions may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "bootstrap/interfaces.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

// An NCCL_* variable that is set and has a meaning for Tutti, with the value that is used.
struct TakenVariable {
  std::string name;
  std::string text;
  std::optional<std::int64_t> number;  // set if the variable is a number
};

struct EnvironmentSettings {
  // TUTTI_* variables that follow from the NCCL_* variables. They apply if the process's environment does not set
  // them.
  Variables overlay;

  // NCCL_COMM_BLOCKING. Takes precedence over ncclConfig_t, as do min_ctas and max_ctas.
  std::optional<bool> blocking;
  std::optional<std::int32_t> min_ctas;  // NCCL_MIN_CTAS, 1 .. 64
  std::optional<std::int32_t> max_ctas;  // NCCL_MAX_CTAS, 1 .. 64, not less than min_ctas
  // NCCL_COMM_ID, "host:port": the ranks meet there instead of through the unique id.
  std::string root;
  std::array<Algorithm, 10> algorithms{};        // NCCL_ALGO, indexed by CollectiveKind
  std::int32_t version = Config().nccl_version;  // TUTTI_NCCL_VERSION
  bool prints_version = false;                   // NCCL_DEBUG requests that the version is printed
  bool all_parameters = false;                   // NCCL_PARAM_DUMP_ALL

  std::vector<TakenVariable> taken;
  std::vector<std::string> ignored;   // "NAME=VALUE has no effect: reason", one for each such variable
  std::vector<std::string> warnings;  // one for each value that was invalid or was changed
};

// Access to the system, apart from the environment variables; tests replace it. Each function is called only if a
// variable needs it.
struct SystemAccess {
  // Returns the content of a file, or nothing if the file cannot be read.
  std::function<std::optional<std::string>(const std::string& path)> read_file;
  std::function<Result<std::vector<InterfaceAddress>>()> interfaces;
};

// The real system. Files are read up to kMostConfBytes.
inline constexpr std::size_t kMostConfBytes = 64 * 1024;
SystemAccess this_machine();

// Interprets the variables. Errors (kConfig), in the same cases in which NCCL refuses to start: NCCL_ALGO or
// NCCL_PROTO with an unknown word, NCCL_COMM_ID that is not an address, NCCL_SOCKET_IFNAME that matches no interface.
// Also an invalid TUTTI_NCCL_VERSION or TUTTI_SLOTS.
Result<EnvironmentSettings> read_settings(const EnvironmentVariables& environment, const SystemAccess& host_access);

// Logs the result for the user: the version, if NCCL_DEBUG requests it; each warning; and the variables without
// effect, as one line of names, and at LogLevel::kInfo also each with its reason. To be called for the first
// communicator of a process.
void report(const EnvironmentSettings& settings, const Log& log);

// The result of read_settings() for this process. It is read once, at the first call, because NCCL's functions have no
// object that could hold it and must all use the same values. Pointers into it are given to the program and stay valid
// until the process exits.
const Result<EnvironmentSettings>& process_settings();

}  // namespace tutti::nccl
