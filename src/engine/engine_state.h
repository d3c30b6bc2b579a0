// EngineContext and EngineState: the values and the state that the classes of an engine share. EngineContext is
// constant. EngineState is the state that several threads use, with the engine's mutex. All other state of an engine
// belongs to the driver, the one thread that has the DriverRole.
#pragma once

#include <cstdint>
#include <mutex>

#include "engine/driver_role.h"
#include "engine/failure_analyzer.h"
#include "engine/failure_state.h"
#include "engine/operation_queue.h"
#include "executor/bind.h"
#include "job/environment.h"

namespace tutti {

// Determines whether the communicator's calls may be divided into segments.
enum class Segmentation : std::uint8_t { kNone, kLongCalls };

struct EngineContext {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  Environment& environment;
  Transport& transport;      // the environment's transport
  Recorder* const recorder;  // the environment's recorder; null if nothing is recorded
  Connections& connections;  // only the driver uses it
  Segmentation segmentation = Segmentation::kNone;

  FailureAnalyzer analyzer() const { return {rank, ranks, transport}; }
};

struct EngineState {
  explicit EngineState(const EngineContext& context)
      : queue(context.ranks), role(context.transport), failure(context.transport, context.recorder) {}

  // True if no operation is in progress. Hold the mutex.
  bool idle() const { return queue.empty() && !role.unqueued(); }

  // Guards the members below, except for the functions that state that they need no lock. Other threads need it only
  // for a moment, and the driver does not hold it while it polls, except for the first polls of a short call. Lock
  // order: the communicator's submission mutex and the lock of EngineHandle come before it, and the locks inside the
  // transport come after it.
  std::mutex mutex;
  OperationQueue queue;
  DriverRole role;
  FailureState failure;
};

}  // namespace tutti
