// DeviceSide: the part of one communicator for the calls that its ranks' GPUs carry out. It prepares and submits these
// calls, ends the communicator if a GPU fails, and frees and allocates the communicator's GPU memory (suspend() and
// resume()). There are two kinds: LocalDevices (local_devices.cc), if the ranks are on one machine or the host carries
// out all calls, and AcrossMachines (across_machines.cc), if GPUs of several machines carry out parts of calls.
//
// Thread-safe, except that takes(), prepare(), submit() and take_error() need the communicator's submission mutex, and
// that wait_for_empty() must be called when no other function is in progress. It owns no threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "communicator/devices/inner_communicators.h"
#include "communicator/membership.h"
#include "communicator/memory.h"
#include "communicator/plan_table.h"
#include "device/native/device_executor.h"
#include "engine/arguments.h"
#include "engine/engine.h"
#include "job/environment.h"
#include "selection/algorithm_selector.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class DeviceSide {
 public:
  virtual ~DeviceSide() = default;
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  // Makes a failure of a GPU end the engine as well. Call it once, when the engine exists.
  virtual void connect_to_engine() = 0;

  // Null if the GPUs carry out no calls at the moment, or only parts of calls. Keep the result only during one
  // function.
  virtual std::shared_ptr<DeviceExecutor> executor() const = 0;
  bool runs_on_devices() const { return executor() != nullptr; }
  // Whether a call of this kind and length can run in parts (AcrossMachines) if its buffers are GPU memory. takes()
  // checks the other conditions, for example the operation. The same on all ranks.
  virtual bool runs_in_parts(CollectiveKind kind, std::uint64_t bytes) const = 0;
  // Which GPUs carry out whole calls. kNone for AcrossMachines, whose GPUs carry out only parts of calls, and while the
  // host carries out all calls. The same on all ranks.
  GpuUse gpu_use() const;

  // Whether the GPU should carry out the call (AcrossMachines: parts of it), because its buffers are memory of this
  // rank's GPU. False for calls that GPUs do not carry out, for example if the call has a user reduction. Errors: for
  // example buffers on two GPUs.
  virtual Result<bool> takes(const CheckedCall& checked, const CallOptions& options) = 0;
  // Makes the operation of a call for which takes() is true. Returns null if the host has to carry out this call; then
  // all ranks get null, unless the inputs of only some ranks are in symmetric registered memory
  // (CopyEngines::find_inputs()).
  virtual Result<std::shared_ptr<Operation>> prepare(const CheckedCall& checked, const CallOptions& options,
                                                     Algorithm algorithm, const PlanTable::ChosenPlan* chosen,
                                                     std::int64_t timeout_ns) = 0;
  // The same for sends and receives. `empty`: an operation with those that have no bytes, or null; see TransferCall.
  virtual Result<bool> takes(const CheckedExchange& exchange) = 0;
  virtual Result<std::shared_ptr<Operation>> prepare(CheckedExchange exchange, std::shared_ptr<Operation> empty,
                                                     const CallOptions& options, std::int64_t timeout_ns) = 0;
  // Submits an operation that prepare() has made.
  virtual Status submit(const Operation& operation) = 0;
  // For an operation of prepare(): makes the call's stream wait for the call. First waits on the host until the ranks
  // that share this rank's process and GPU have made the call too (LaunchGroup::settle()). Call it after submit(). In a
  // Group, call it after all calls of the Group were submitted.
  virtual Status settle(const Operation& operation) = 0;
  // Returns the first error of a send or receive without bytes of a submitted operation; nothing if there is none. Each
  // error is returned once. Hold the submission mutex.
  virtual std::optional<Error> take_error() { return std::nullopt; }
  // Waits until the sends and receives without bytes of all submitted operations have ended, at most kEmptyLimit
  // (local_devices.cc). Call it before the engine is destroyed: the engine's destructor would end them, and the peers
  // would take that for an abort.
  virtual void wait_for_empty() noexcept {}
  // Number of submitted calls.
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // The error after which the GPUs cannot carry out calls any more; nothing if there is none. Asks the driver, too.
  // AcrossMachines also returns errors of scope kCall, of calls that have failed alone.
  virtual std::optional<Error> failure() = 0;
  // Call fail() if this rank cannot take part any more, and abort() for Communicator::abort(). Both end the calls on
  // the GPUs.
  virtual void fail(const Error& error) noexcept = 0;
  virtual void abort() = 0;
  // Waits until the submitted calls have ended. Errors: see DeviceExecutor::finish(). AcrossMachines finalizes its
  // inner communicators: it refuses further calls, and may also return the errors of their engines.
  virtual Status finish() = 0;

  // Implements Communicator::register_memory() for memory of a GPU: exports it to the other ranks and maps theirs.
  // Collective, unless runs_on_devices() is false.
  Result<std::unique_ptr<MemoryImpl>> register_memory(void* data, std::size_t bytes);
  // suspend() frees the communicator's GPU memory, and resume() allocates it again. Collective. Do not hold the
  // submission mutex.
  virtual Status suspend() = 0;
  virtual Status resume() = 0;
  // The length in bytes of this rank's GPU memory for connections (DeviceResources::memory_bytes()). suspend() frees
  // this memory, and also the memory of the plans, which is not counted here.
  virtual std::uint64_t memory_use() const = 0;

 protected:
  // `membership` and `environment` must outlive this object. The engine must exist during each call of the functions
  // above, but need not exist when this object is made or destroyed. `parent_round`: a set-up round in which all ranks
  // of the communicator take part.
  DeviceSide(const Membership& membership, const Environment& environment, Engine& engine, Gather parent_round);

  // A round of all ranks (gather_or_fail()). Its errors have the scope kCall as long as the communicator can be used.
  Result<std::vector<std::string>> round(const Result<std::string>& own);
  Error with_call_scope(Error error);

  const Membership& membership_;
  const Environment& environment_;
  Engine& engine_;
  const Gather parent_round_;
  std::atomic<std::uint64_t> calls_ = 0;
};

// GPUs of one machine. `submission_mutex`: that of the communicator; it must exist during each call of a function, but
// need not exist when the object is made or destroyed. `resources`: null if the host carries out all calls. The other
// parameters: see DeviceSide's constructor.
std::unique_ptr<DeviceSide> make_local_devices(const Membership& membership, const Environment& environment,
                                               Engine& engine, Gather parent_round, std::mutex& submission_mutex,
                                               std::unique_ptr<DeviceResources> resources);
// GPUs of several machines.
std::unique_ptr<DeviceSide> make_across_machines(const Membership& membership, const Environment& environment,
                                                 Engine& engine, Gather parent_round, InnerCommunicators inner);

}  // namespace tutti::detail
