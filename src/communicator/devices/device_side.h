// DeviceSide: the part of one communicator for the calls that its ranks' GPUs carry out. It prepares and submits these
// calls, ends the communicator if a GPU fails, registers GPU memory, and frees and allocates the communicator's GPU
// memory (suspend() and resume()). It owns the DeviceExecutor and a mutex that guards the pointer to it, and no
// threads. Thread-safe, except that takes(), prepare(), submit() and take_error() need the communicator's submission
// mutex, and that wait_for_empty() must be called when no other function is in progress.
//
// Every function that uses the executor takes a shared_ptr to it under the mutex, because suspend() of another thread
// may replace the executor at any time. The executor is then destroyed by the last function that uses it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "communicator/devices/across_machines.h"
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
  // `membership` and `environment` must outlive this object. The engine and `submission_mutex` must exist during each
  // call of the functions below, but not when this object is made or destroyed. `resources`: not null if GPUs of one
  // machine carry out whole calls. `across`: not null if GPUs of several machines carry out parts of calls. If both are
  // null, the host carries out all calls. `parent_round`: a set-up round in which all ranks of the communicator take
  // part.
  DeviceSide(const Membership& membership, const Environment& environment, Engine& engine, std::mutex& submission_mutex,
             std::unique_ptr<DeviceResources> resources, std::unique_ptr<AcrossMachines> across, Gather parent_round);

  // Null if the GPUs carry out no calls at the moment, or only parts of calls. Keep the result only during one
  // function.
  std::shared_ptr<DeviceExecutor> executor() const {
    const std::scoped_lock lock(mutex_);
    return executor_;
  }
  bool runs_on_devices() const { return executor() != nullptr; }
  // Whether calls like this run in parts if the buffers are GPU memory (AcrossMachines). The same on all ranks.
  bool runs_in_parts(CollectiveKind kind, std::uint64_t bytes) const {
    return across_ != nullptr && across_->suits(kind, bytes);
  }
  GpuUse gpu_use() const;  // of the calls for which takes() is true; the same on all ranks
  // Makes a failure of a GPU end the engine as well. Call it once, when the engine exists.
  void connect_to_engine();

  // Whether the call's buffers are memory of this rank's GPU, so that the GPU should carry out the call. False if the
  // call has a user reduction. Errors: for example buffers on two GPUs.
  Result<bool> takes(const CheckedCall& checked, const CallOptions& options);
  // Makes the operation of a call for which takes() is true. Returns null if the host has to carry out this call.
  Result<std::shared_ptr<Operation>> prepare(const CheckedCall& checked, const CallOptions& options,
                                             Algorithm algorithm, const PlanTable::ChosenPlan* chosen,
                                             std::int64_t timeout_ns);
  // The same for sends and receives. `empty`: an operation with those that have no bytes, or null; see TransferCall.
  Result<bool> takes(const CheckedExchange& exchange);
  Result<std::shared_ptr<Operation>> prepare(CheckedExchange exchange, std::shared_ptr<Operation> empty,
                                             const CallOptions& options, std::int64_t timeout_ns);
  // Submits an operation that prepare() has made.
  Status submit(const Operation& operation);
  // Returns the first error of a send or receive without bytes of a submitted operation; nothing if there is none. Each
  // error is returned once. Hold the submission mutex.
  std::optional<Error> take_error();
  // Waits until the sends and receives without bytes of all submitted operations have ended, at most kEmptyLimit
  // (device_side.cc). Call it before the engine is destroyed, which ends them: the peers would take that for an abort.
  void wait_for_empty() noexcept;
  // Number of calls that were submitted so far.
  std::uint64_t calls() const {
    return calls_.load(std::memory_order_relaxed) + (across_ == nullptr ? 0 : across_->calls());
  }

  // The error after which the GPUs cannot carry out calls any more; nothing if there is none. Asks the driver, too.
  std::optional<Error> failure();
  // fail(): call it if this rank cannot take part any more. abort(): for Communicator::abort(). Both end the calls on
  // the GPUs.
  void fail(const Error& error) noexcept;
  void abort();
  // Waits until the submitted calls have ended. Errors: see DeviceExecutor::finish().
  Status finish();

  // For an operation of prepare(): makes the call's stream wait for the call. First waits on the host until the ranks
  // that share this rank's process and GPU have made the call too (LaunchGroup::settle()). Call it after submit(). In a
  // Group, call it after all calls of the Group were submitted. Other operations need nothing here.
  static Status settle(const Operation& operation);

  // Communicator::register_memory() for memory of a GPU: exports it to the other ranks and maps theirs. Collective,
  // unless runs_on_devices() is false.
  Result<std::unique_ptr<MemoryImpl>> register_memory(void* data, std::size_t bytes);
  // suspend() frees the communicator's GPU memory, and resume() allocates it again. Collective. Do not hold the
  // submission mutex.
  Status suspend();
  Status resume();
  // The length in bytes of this rank's GPU memory for connections (DeviceResources::memory_bytes()). suspend() frees
  // this memory, and also the memory of the plans, which is not counted here.
  std::uint64_t memory_use() const;

 private:
  std::shared_ptr<DeviceExecutor> make_executor(std::unique_ptr<DeviceResources> resources) const;
  void listen_to(DeviceExecutor* executor);
  void replace(std::shared_ptr<DeviceExecutor> executor, bool suspended);
  Status agree_on(const Status& step);
  Status suspend_parts();
  Status resume_parts();
  Status wait_until_freed();
  Error with_call_scope(Error error);
  static std::shared_ptr<Operation> operation_of(std::shared_ptr<DeviceCall> call);
  Error escalate(DeviceExecutor& executor, const Error& error, const CallTag& tag);

  const Membership& membership_;
  const Environment& environment_;
  Engine& engine_;
  std::mutex& submission_mutex_;
  const Gather parent_round_;
  const std::unique_ptr<AcrossMachines> across_;  // null if the ranks are on one machine, or the host runs all calls
  // Lock order: submission_mutex_ first, then mutex_. Hold both to replace executor_, so that it stays the same during
  // the preparation and submission of a call.
  mutable std::mutex mutex_;
  // Non-null if the ranks' GPUs carry out calls. Shared with functions of other threads that may still use it when
  // suspend() replaces it.
  std::shared_ptr<DeviceExecutor> executor_;
  bool suspended_ = false;  // executor_ is null until resume(); guarded by mutex_
  std::atomic<std::uint64_t> calls_ = 0;
  // Number of calls_ without sends, receives and captured calls. Guarded by the submission mutex.
  std::uint64_t collectives_ = 0;
  std::vector<std::shared_ptr<Operation>> empty_;  // TransferCall::empty of calls; ended ones are removed later
};

}  // namespace tutti::detail
