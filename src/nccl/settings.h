// The settings of a communicator of the C face: what the environment says (environment.h), and ncclConfig_t beside it.
#pragma once

#include <array>
#include <string>

#include "base/config.h"
#include "nccl.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

struct Settings {
  Variables defaults;  // TUTTI_* pairs that stand under the process's own
  bool blocking = true;
  std::string root;  // "host:port": where to meet in place of a unique id; empty: by the id
  // By CollectiveKind: what calls ask for.
  std::array<Algorithm, 10> algorithms{};
};

// What the environment says; read once per process, at its first use.
Result<const Settings*> environment_settings();

// `config` (may be null) laid over `base`, but for what the environment says, which wins. Errors (kInvalidArgument): a
// config that was not initialised, or a value that cannot be.
Result<Settings> settings_with(const Settings& base, const ncclConfig_t* config);

}  // namespace tutti::nccl
