// The configuration of one call: ncclCollConfig_t, which the functions nccl...Config() take.
#pragma once

#include <chrono>
#include <cstdint>

#include "nccl.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

// The part of an ncclCollConfig_t that Tutti uses. The default is that of a call without a configuration.
struct CallConfig {
  Algorithm algorithm = Algorithm::kAuto;
  bool selects = false;                  // the configuration selects the algorithm, so a tuner plugin is not asked
  std::chrono::milliseconds timeout{0};  // 0: that of the communicator
  bool uniform = false;                  // the call is to have the same outcome on all live ranks
  bool checksum = false;                 // the messages of the call are to have checksums
  std::uint64_t label = 0;               // userProfilerTag
  cudaEvent_t launched = nullptr;        // launchCompletionEvent; null: none
};

// Reads the configuration of a call of `kind`. A null `config` gives the default. `algorithm`: the algorithm that the
// settings of the communicator select, which the configuration may replace; its other fields are read here, and nothing
// of them is used after the call. Errors (kInvalidArgument): the structure was not initialised, a field or an option of
// Tutti is out of range, or the list of options has a cycle or a key twice. (kUnsupported) with forceAlgSelection:
// algSelection allows no algorithm of Tutti, or only some protocols of one.
Result<CallConfig> read_call_config(const ncclCollConfig_t* config, CollectiveKind kind, Algorithm algorithm);

}  // namespace tutti::nccl
