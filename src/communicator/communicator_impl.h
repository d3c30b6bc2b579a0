// CommunicatorImpl: the implementation of the public class Communicator. It makes and connects the parts of a
// communicator, each of which has a header of its own, and runs the calls. Internal to src/communicator and its tests.
//
// Threads: every public function may be called from any thread, unless its comment excludes that. submission_mutex()
// orders the submissions of calls; the engine and some other parts have locks of their own. Five of the locks are taken
// in this order: the mutex of UniformMode, the mutex of ChecksumCalls, submission_mutex(), the mutex of LocalDevices,
// the mutex of the engine.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "communicator/child_factory.h"
#include "communicator/devices/device_side.h"
#include "communicator/membership.h"
#include "communicator/open_groups.h"
#include "communicator/operation_builder.h"
#include "communicator/outcomes/agree.h"
#include "communicator/outcomes/checksum_calls.h"
#include "communicator/outcomes/uniform.h"
#include "engine/engine.h"
#include "job/environment.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class CommunicatorImpl {
 public:
  // `devices` is not null if GPUs of one machine carry out whole calls, and `inner` is not null if GPUs of several
  // machines carry out parts of calls. If both are null, the host carries out calls on device memory. `timeout`: used
  // for calls without a timeout of their own.
  CommunicatorImpl(Membership membership, Environment environment, std::chrono::milliseconds timeout,
                   std::unique_ptr<DeviceResources> devices = nullptr,
                   std::unique_ptr<InnerCommunicators> inner = nullptr);
  ~CommunicatorImpl();

  static std::unique_ptr<Communicator> wrap(std::unique_ptr<CommunicatorImpl> impl);
  static CommunicatorImpl& of(const Communicator& communicator) { return *communicator.impl_; }

  // Runs the body of a public function. An exception, for example std::bad_alloc, becomes an error. The exception
  // also ends this communicator and everything that is in progress on it, because the other ranks of the call wait
  // for this one.
  template <class Body>
  auto guarded(Body&& body) noexcept -> decltype(body()) {
    try {
      return std::forward<Body>(body)();
    } catch (...) {
      return end_by_exception();
    }
  }

  bool own_process() const { return getpid() == process_; }
  const Membership& membership() const { return membership_; }
  const Environment& environment() const { return environment_; }
  Engine& engine() { return engine_; }
  DeviceSide& devices() { return *devices_; }
  ChildFactory& children() { return children_; }
  // Hold this mutex while calling submit(), run_operation(), start_operation(), the functions of groups(), and those of
  // operations() for which operation_builder.h requires it.
  std::mutex& submission_mutex() { return mutex_; }
  OperationBuilder& operations() { return operations_; }
  OpenGroups& groups() { return groups_; }

  Status run(const CollectiveCall& call, const CallOptions& options);
  // Like run(), but without the vote on a uniform call (outcomes/uniform.h), and without the checks of check_special().
  // CallOptions::uniform must be false. A call with another purpose than kApplication has no v-variant and no
  // UserReduction, because the purpose replaces the digest of its tag.
  Status run_plain(const CollectiveCall& call, const CallOptions& options,
                   CallPurpose purpose = CallPurpose::kApplication);
  Result<Work> start(const CollectiveCall& call, const CallOptions& options);
  // Submits the operation and waits for it. An operation on device memory continues in its stream instead; for it,
  // waits no longer than settle() does. `submission` holds the submission mutex, and is unlocked before the wait. If
  // `prepared` is an error, returns that error.
  Status run_operation(const Result<std::shared_ptr<Operation>>& prepared, std::unique_lock<std::mutex>& submission);
  // Submits the operation in the background. `submission` and `prepared`: as for run_operation().
  Result<Work> start_operation(const Result<std::shared_ptr<Operation>>& prepared,
                               std::unique_lock<std::mutex>& submission);
  // For a submitted operation on device memory: makes the caller's stream wait for it, unless submit() has done so. If
  // other ranks of this process share this rank's GPU and the call is not captured, first waits on the host: if GPUs
  // carry the call out, until these ranks have made the call, too; if the host carries it out and it has an output on
  // this rank, until it has ended. Has no effect on an operation on host memory. Call it without the submission mutex.
  // In a Group, call it after all calls of the Group were submitted.
  Status settle(const Operation& operation);
  // Hold the submission mutex. Call settle() afterwards.
  Status submit(const std::shared_ptr<Operation>& operation, Engine::Progress progress);

  Result<Memory> allocate(std::size_t bytes);
  Result<Memory> register_memory(void* data, std::size_t bytes);
  Result<Agreement> agree(const AgreeOptions& options);
  Status async_status();
  Status finalize();
  void abort();
  // Ends this communicator, because this rank can no longer take part.
  void fail(const Error& error) noexcept;

 private:
  Error end_by_exception() noexcept;
  // Refuses CallOptions::uniform or checksum if the call or the communicator does not allow it.
  Status check_special(const CollectiveCall& call, const CallOptions& options) const;
  Status check_before_checksum(const CollectiveCall& call, const CallOptions& options);
  // Runs a call with CallOptions::checksum.
  Status run_with_checksum(const CollectiveCall& call, const CallOptions& options);

  const pid_t process_ = getpid();
  // Must be destroyed after all members below, because it holds the JobContext, parts of which (the clock, for example)
  // the transport uses as long as the transport exists.
  const Membership membership_;
  Agreements agreements_;
  ChildFactory children_;
  Environment environment_;
  std::mutex mutex_;  // orders submissions; guards groups_ and operations_
  OpenGroups groups_;
  Connections connections_;
  OperationBuilder operations_;
  const std::unique_ptr<DeviceSide> devices_;
  std::optional<UniformMode> uniform_;  // set if some calls can be uniform and there is more than one rank
  ChecksumCalls checksum_calls_;
  Engine engine_;  // must be the last member, so that it is destroyed before the members that it uses
};

// Number of set-up rounds that make_communicator() takes, even if it returns an error.
int communicator_rounds(const JobContext& job_context);

// Makes a communicator on top of a job that has been set up already, for example the first one of the job, or a child
// of another one. All members must call this function. `among`: runs one set-up round among the members. `timeout`:
// that of the new communicator's calls.
Result<std::unique_ptr<Communicator>> make_communicator(Membership membership, std::chrono::milliseconds timeout,
                                                        const Gather& among);

}  // namespace tutti::detail
