// What NCCL's environment variables, in their own syntax, mean for Tutti. docs/nccl-environment.md is the table for
// people, and a test compares the two.
//
// A variable comes from the process's environment, else from the file that NCCL_CONF_FILE names (~/.nccl.conf where it
// names none), else from /etc/nccl.conf; one that is empty is one that is not set. A value that makes no sense is
// warned of and the default taken, as NCCL does; where NCCL refuses to start, so does this. read_settings() depends on
// its arguments only. Any thread.
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

// A mapped NCCL_* variable that is set, with the value that was taken.
struct TakenVariable {
  std::string name;
  std::string text;
  std::optional<std::int64_t> number;  // of those that are numbers
};

struct EnvironmentSettings {
  // TUTTI_* pairs, to be laid under what the process's own TUTTI_* variables say.
  Variables overlay;

  std::optional<bool> blocking;                  // NCCL_COMM_BLOCKING: wins over ncclConfig_t, as the next two do
  std::optional<std::int32_t> min_ctas;          // NCCL_MIN_CTAS, 1 .. 64
  std::optional<std::int32_t> max_ctas;          // NCCL_MAX_CTAS, 1 .. 64, not less than min_ctas
  std::string root;                              // NCCL_COMM_ID, "host:port": where to meet in place of a unique id
  std::array<Algorithm, 10> algorithms{};        // NCCL_ALGO, by CollectiveKind
  std::int32_t version = Config().nccl_version;  // TUTTI_NCCL_VERSION
  bool says_version = false;                     // NCCL_DEBUG asks for a line that tells the version
  bool all_parameters = false;                   // NCCL_PARAM_DUMP_ALL

  std::vector<TakenVariable> taken;
  std::vector<std::string> ignored;   // "NAME=VALUE has no effect: why", of each variable of which that is so
  std::vector<std::string> warnings;  // a sentence for each value that could not be taken as it stands
};

// What lies outside the environment; each is asked for only where a variable needs it.
struct Surroundings {
  // The text of a file; nothing where it cannot be read.
  std::function<std::optional<std::string>(const std::string& path)> read_file;
  std::function<Result<std::vector<InterfaceAddress>>()> interfaces;
};

// This machine's. Files are read up to kMostConfBytes.
inline constexpr std::size_t kMostConfBytes = 64 * 1024;
Surroundings this_machine();

// Errors (kConfig), where NCCL does not start either: NCCL_ALGO or NCCL_PROTO that cannot be read, NCCL_COMM_ID that is
// no place, NCCL_SOCKET_IFNAME that fits no interface; and a wrong TUTTI_NCCL_VERSION or TUTTI_SLOTS.
Result<EnvironmentSettings> read_settings(const EnvironmentVariables& environment, const Surroundings& surroundings);

// What people should know of it: the version, where NCCL_DEBUG asks for it; each warning; what is ignored, in one line
// of names, and, for LogLevel::kInfo, each with its reason. For the first communicator of a process.
void report(const EnvironmentSettings& settings, const Log& log);

// read_settings() of this process. Read once, at the first call, since NCCL's functions, which have no object to hold
// it, must all see the same, and pointers into it are handed out for the life of the process.
const Result<EnvironmentSettings>& process_settings();

}  // namespace tutti::nccl
