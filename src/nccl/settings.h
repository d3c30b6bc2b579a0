// The settings of a communicator of the C face: what the environment says (environment.h), and ncclConfig_t over it.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/config.h"
#include "nccl.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

struct Settings {
  Variables defaults;    // TUTTI_* pairs that stand under the process's own
  bool blocking = true;
  int version = NCCL_VERSION_CODE;  // that ncclGetVersion() reports
  std::string name;                 // commName
  bool split_share = false;
  // By CollectiveKind: what NCCL_ALGO asks for.
  std::array<Algorithm, 10> algorithms{};
};

// What the environment says; read once per process, at its first use.
Result<const Settings*> environment_settings();

// `config` (may be null) laid over `base`. Errors: a config that was not initialised, or a value that cannot be.
Result<Settings> settings_with(const Settings& base, const ncclConfig_t* config);

}  // namespace tutti::nccl
