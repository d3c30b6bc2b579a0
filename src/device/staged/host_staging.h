// HostStaging: stages the calls of one communicator on device memory through host memory, whole or in segments. It
// recognises such calls, replaces their buffers, and submits them. The other files of this folder are its parts, and no
// other folder includes them: a StagedCall for each call or segment (staging.h), its StagedBuffers, and the
// communicator's StagingPool. Made at the first such call. Owns no threads. Hold the communicator's submission mutex.
#pragma once

#include <memory>
#include <optional>

#include "cuda/driver.h"
#include "engine/arguments.h"
#include "engine/engine.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class StagedCall;
class StagingPool;

class HostStaging {
 public:
  // `driver` and `transport` must outlive this object, and no engine may use it any more when it is destroyed. The
  // destructor waits for a limited time for streams that still have calls.
  HostStaging(const cuda::Driver& driver, Transport& transport, Log& log);
  ~HostStaging();
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  // If the buffers are device memory, replaces them by their copies in host memory and returns the start condition of
  // the operation. Returns null if they are host memory. Errors: kInvalidArgument (some buffers are device memory and
  // some host memory; the stream does not fit), kUnsupported, kSystem.
  Result<std::shared_ptr<StartCondition>> stage(CheckedCall& checked, const CallOptions& options);
  Result<std::shared_ptr<StartCondition>> stage(CheckedExchange& exchange, const CallOptions& options);

  // Whether the buffer is device memory. Requires that the CUDA driver is loaded.
  static bool is_device_memory(const void* data, std::size_t bytes);

  // Returns the first error since the last call of this function. First checks whether streams have lost their
  // contexts.
  std::optional<Error> take_error();

  // Submits an operation, with the other segments of its call: puts it into its stream, if it has one, and then into
  // the engine's queue. The engine fails if the stream's context is lost, or if only some of the segments could be
  // submitted.
  static Status submit(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress);

 private:
  static Status submit_segment(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress);

  const cuda::Driver& driver_;
  Log& log_;
  const std::shared_ptr<StagingPool> pool_;  // shared by calls, which streams may hold for longer
};

}  // namespace tutti::detail
