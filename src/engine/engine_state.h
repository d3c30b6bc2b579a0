// EngineContext and EngineState: values and state that the classes of one engine share. EngineContext is constant.
// EngineState is the state that several threads use, guarded by the engine's mutex. Most of the other state of an
// engine, for example that of its ProgressLoop, is used only by the driver: the one thread that has the DriverRole or,
// during the first polls of a short call (short_calls.h), the thread that holds the mutex while no thread has the role.
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

// Whether long calls of the communicator may be divided into segments (segments.h). kNone: never. kLongCalls: yes,
// because some rank of the job has a GPU, and in this communicator the host carries out the calls on device memory.
enum class Segmentation : std::uint8_t { kNone, kLongCalls };

struct EngineContext {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  Environment& environment;
  Transport& transport;      // the environment's transport
  Recorder* const recorder;  // the environment's recorder; null if nothing is recorded
  Connections& connections;  // only the driver opens connections
  Segmentation segmentation = Segmentation::kNone;

  FailureAnalyzer analyzer() const { return {rank, ranks, transport}; }
};

struct EngineState {
  explicit EngineState(const EngineContext& context)
      : queue(context.ranks), role(context.transport), failure(context.transport, context.recorder) {}

  // True if no operation is queued, and no short call or ImmediateProbe runs outside the queue. Hold the mutex.
  bool idle() const { return queue.empty() && !role.unqueued(); }

  // Guards the members below, except for those of their functions that state that they need no lock. Every thread
  // holds this mutex only for a moment. The driver does not hold it while it polls, except for the first polls of a
  // short call. Lock order: the communicator's submission mutex and the lock of EngineHandle are locked before this
  // mutex, and the locks inside the transport after it.
  std::mutex mutex;
  OperationQueue queue;
  DriverRole role;
  FailureState failure;
};

}  // namespace tutti
