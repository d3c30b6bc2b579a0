// The settings of a communicator of the NCCL interface. They come from the environment variables
// (environment/environment.h) and from the ncclConfig_t of the call.
#pragma once

#include <array>
#include <string>

#include "base/config.h"
#include "nccl.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

struct Settings {
  // TUTTI_* variables that apply if the process's environment does not set them.
  Variables defaults;
  bool blocking = true;
  // "host:port" of NCCL_COMM_ID, at which the ranks meet. Empty: they meet through the unique id.
  std::string root;
  // The algorithm for each collective, indexed by CollectiveKind. kAuto: Tutti chooses.
  std::array<Algorithm, 10> algorithms{};
  // A hash of the key that ncclSetEncryption() has requested. If it is not empty, it is the job key, and encryption is
  // on.
  std::string encryption_key;
  std::string name;  // ncclConfig_t::commName, for profiler plugins; empty: not set
};

// A hash of the key that the last ncclSetEncryption() of this process has requested; empty: none. Thread-safe.
std::string requested_key();

// The settings that follow from the environment variables, which are read once in a process, at the first call of this
// function, and from requested_key().
Result<Settings> environment_settings();

// Returns `base`, changed by the fields of `config` that Tutti uses: `blocking`, `maxCTAs` and `commName`. A null
// `config` changes nothing. An environment variable takes precedence over the field of the same meaning. Errors
// (kInvalidArgument): a config that was not initialised; an integer field that is out of range, even if Tutti does not
// use that field (every value of trafficClass is allowed); minCTAs greater than maxCTAs.
Result<Settings> settings_with(const Settings& base, const ncclConfig_t* config);

}  // namespace tutti::nccl
