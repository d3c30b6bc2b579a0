// HostStaging: what one communicator needs for calls on device memory; made at the first such call. Tells which calls
// those are and has them staged (staging.h). Used under the communicator's submission mutex.
#pragma once

#include <memory>
#include <optional>

#include "cuda/driver.h"
#include "device/staged/staging.h"
#include "engine/arguments.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class HostStaging {
 public:
  // Both outlive it, and no engine uses it any more when it ends. Waits then, within bounds, for streams that still
  // have calls.
  HostStaging(const cuda::Driver& driver, Transport& transport, Log& log);
  ~HostStaging();
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  // Turns the buffers into their staged twins where they are device memory; null where they are the host's.
  // Errors: kInvalidArgument (some are the one, some the other; the stream does not fit), kUnsupported, kSystem.
  Result<std::shared_ptr<StagedCall>> stage(CheckedCall& checked, const CallOptions& options);
  Result<std::shared_ptr<StagedCall>> stage(CheckedExchange& exchange, const CallOptions& options);

  // Where the driver is loaded.
  static bool is_device_memory(const void* data, std::size_t bytes);

  // The first error since it was last asked for. Looks first whether streams have lost their contexts.
  std::optional<Error> take_error();

  // Puts an operation, with the other pieces of its call, into its stream, if it has one, and then into the engine's
  // queue. The engine has failed where the stream's context is lost, or where some pieces have their place and others
  // cannot have one.
  static Status submit(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress);

 private:
  std::shared_ptr<StagedCall> new_call();
  static Status submit_piece(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress);

  const cuda::Driver& driver_;
  Log& log_;
  const std::shared_ptr<StagingPool> pool_;  // shared by calls, which streams may hold for longer
};

}  // namespace tutti::detail
