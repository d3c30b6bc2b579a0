// HostStaging: prepares the calls of one communicator on buffers in device memory, if the host carries these calls out.
// The buffers are copied to host memory and back, for a whole call or for each of its segments. The class recognises
// such calls, replaces their buffers, and submits them. The other files of this folder are its parts, and no other
// folder includes them: a StagedCall for each call or segment (staging.h), its StagedBuffers, and the communicator's
// StagingPool. OperationBuilder makes the object when it first prepares a call that the host carries out while the
// CUDA driver is loaded, even if the buffers of that call are host memory. The object owns no threads. Hold the
// communicator's submission mutex for all functions except is_device_memory() and settle().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cuda/driver.h"
#include "device/process_ranks.h"
#include "engine/arguments.h"
#include "engine/engine.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class StagedCall;
class StagingPool;

class HostStaging {
 public:
  // `driver`, `transport` and `log` must outlive this object, and the engine must have ended all its operations before
  // it is destroyed. The destructor waits for streams that have not finished their calls, at most for kStreamsLimit. If
  // some have not finished then, it leaks the host memory. `ranks`: the communicator's ranks that share this process.
  HostStaging(const cuda::Driver& driver, Transport& transport, Log& log, std::shared_ptr<ProcessRanks> ranks);
  ~HostStaging();
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  // If the buffers are device memory, replaces them by their copies in host memory and returns the start condition
  // of the operation. Returns null, and changes nothing, if they are host memory or have no bytes. Errors:
  // kInvalidArgument (the buffers are not all host memory or all memory of the same GPU; or the stream belongs to
  // another context; or no context is current for mapped virtual memory), kUnsupported (a captured call that uses
  // several contexts), kSystem, those of the driver.
  Result<std::shared_ptr<StartCondition>> stage(CheckedCall& checked, const CallOptions& options);
  Result<std::shared_ptr<StartCondition>> stage(CheckedExchange& exchange, const CallOptions& options);

  // Whether the buffer is device memory, or memory for which the query of the driver fails. False if `bytes` is 0, or
  // if the CUDA driver is not loaded.
  static bool is_device_memory(const void* data, std::size_t bytes);

  // Checks whether streams have lost their contexts. Then returns the first error, since the last call of this
  // function, of a staged call that failed after it was queued, or nothing. Errors that only submit() or settle() has
  // found, and returned, are not included, nor is the end of a call that was not submitted because the communicator had
  // failed.
  std::optional<Error> take_error();

  // Submits an operation and the other segments of its call. For each of them: puts its copies and callbacks into its
  // stream, if it has a StagedCall, and adds it to the engine's queue, unless the stream does that later. Also breaks
  // the communicator (Engine::fail()) if a stream's context is lost, or if a call in segments is submitted only in part
  // or meets an exception.
  static Status submit(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress);

  // Call it after submit(), and in a Group after all calls of the Group were submitted: see StagedCall::settle(). If
  // this rank cannot take part any more (scope kCommunicator or wider), also breaks the communicator. Has no effect if
  // the operation has no StagedCall, or one for which settles() is false.
  static Status settle(Engine& engine, const Operation& operation);

 private:
  static Status submit_segment(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress);

  const cuda::Driver& driver_;
  Log& log_;
  const std::shared_ptr<ProcessRanks> ranks_;  // shared with the communicator
  // shared with the calls, which streams may hold for longer than this object exists
  const std::shared_ptr<StagingPool> pool_;
};

}  // namespace tutti::detail
