// CommunicatorImpl: construction, the submission of calls, memory, agreement, and the end of a communicator. Also
// make_communicator().
#include "tutti/communicator.h"

#include <string>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "communicator/communicator_impl.h"
#include "communicator/gather_rounds.h"
#include "communicator/memory.h"
#include "communicator/work.h"
#include "device/native/device_resources.h"
#include "device/staged/host_staging.h"
#include "job/job_context.h"

namespace tutti::detail {
namespace {

// Returns a function that runs one set-up round among the ranks of the communicator, by two ordinary all_gather
// calls.
Gather rounds_over(CommunicatorImpl& communicator) {
  return [&communicator](const std::string& blob) {
    return all_gather_blobs(
        communicator.membership().ranks,
        [&communicator](const CollectiveCall& call) {
          // The second call of a round is an all_gather_v, whose tag has no field for the purpose. It needs none here,
          // because this call is made only if the first one has succeeded.
          return communicator.run_plain(call, {}, call.variable ? CallPurpose::kApplication : CallPurpose::kSetUpRound);
        },
        blob);
  };
}

// Returns whether long calls are cut into segments. They are cut if the job has GPUs, but GPUs do not carry out whole
// calls of this communicator: the host then copies GPU memory, and the copies of one segment overlap with the
// communication of another. The same on all ranks.
Segmentation segmentation_of(const Membership& membership, const DeviceResources* devices) {
  const bool staged = membership.job_context != nullptr && membership.job_context->devices && devices == nullptr;
  return staged ? Segmentation::kLongCalls : Segmentation::kNone;
}

}  // namespace

CommunicatorImpl::CommunicatorImpl(Membership membership, Environment environment, std::chrono::milliseconds timeout,
                                   std::unique_ptr<DeviceResources> devices, std::unique_ptr<InnerCommunicators> inner)
    : membership_(std::move(membership)),
      agreements_(membership_, engine_),
      children_(membership_, engine_, timeout, rounds_over(*this)),
      environment_(std::move(environment)),
      connections_(*environment_.transport),
      operations_(membership_, environment_, devices_, engine_, timeout, segmentation_of(membership_, devices.get())),
      devices_(
          inner == nullptr
              ? make_local_devices(membership_, environment_, engine_, rounds_over(*this), mutex_, std::move(devices))
              : make_across_machines(membership_, environment_, engine_, rounds_over(*this), std::move(*inner))),
      checksum_calls_({.run = [this](const CollectiveCall& call, const CallOptions& options,
                                     CallPurpose purpose) { return run_plain(call, options, purpose); },
                       .make_twin = [this] { return children_.with_checksums(); },
                       .broken = [this]() -> Status {
                         auto error = engine_.broken();
                         return error ? Status(*std::move(error)) : Status();
                       },
                       .fail = [this](const Error& error) { fail(error); }}),
      engine_(membership_.rank, membership_.ranks, environment_, connections_, operations_.segmentation()) {
  devices_->connect_to_engine();
  if (membership_.job_context == nullptr || membership_.ranks < 2) return;
  const UniformCalls uniform = membership_.job_context->config.uniform;
  if (uniform == UniformCalls::kNone) return;
  uniform_.emplace(
      membership_.rank, membership_.ranks, timeout, uniform,
      [this](const CollectiveCall& call, const CallOptions& options, CallPurpose purpose) {
        return run_plain(call, options, purpose);
      },
      [this](const ConsensusVote& vote, std::chrono::milliseconds limit) {
        return agreements_.decide(Agreements::Topic::kCalls, vote, limit);
      },
      [this](const Error& error) {
        fail(error);
        engine_.announce_failure();
      });
}

CommunicatorImpl::~CommunicatorImpl() { devices_->wait_for_empty(); }

std::unique_ptr<Communicator> CommunicatorImpl::wrap(std::unique_ptr<CommunicatorImpl> impl) {
  // The constructor is private, so make_unique cannot be used.
  return std::unique_ptr<Communicator>(new Communicator(std::move(impl)));
}

int communicator_rounds(const JobContext& job_context) {
  return kEnvironmentRounds + (job_context.devices ? kDeviceRounds : 0) +
         (needs_inner_rounds(job_context) ? kInnerRounds : 0);
}

namespace {

Result<std::unique_ptr<Communicator>> try_to_make(Membership membership, std::chrono::milliseconds timeout,
                                                  const Gather& among) {
  const JobContext& job_context = *membership.job_context;
  // ProcessRanks is joined before the rounds, so that all ranks of this process have joined it when the first of them
  // makes a call.
  const int device = job_context.device == nullptr ? ProcessRanks::kUnknownDevice : job_context.device->number();
  membership.process_ranks = ProcessRanks::join(membership.id, membership.rank, device);
  auto environment =
      make_environment(membership.job_context, membership.members, membership.rank, membership.id, among);
  if (!environment) return environment.error();
  environment->choices = choices_of(job_context.tuning.get(), membership.ranks, environment->cores);
  auto devices =
      make_device_resources(job_context, membership.members, membership.rank, membership.id, *environment, among);
  if (!devices) return devices.error();
  auto inner = make_inner_communicators(membership, *environment, timeout, among);
  if (!inner) return inner.error();
  return CommunicatorImpl::wrap(std::make_unique<CommunicatorImpl>(std::move(membership), *std::move(environment),
                                                                   timeout, *std::move(devices), *std::move(inner)));
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_communicator(Membership membership, std::chrono::milliseconds timeout,
                                                        const Gather& among) {
  const int rounds = communicator_rounds(*membership.job_context);
  int taken = 0;
  const Gather counted(
      [&](const std::string& blob) {
        ++taken;
        return among(blob);
      },
      among.has_failed());
  auto made = try_to_make(std::move(membership), timeout, counted);
  // Other ranks, for example of another colour, expect this rank in the remaining rounds.
  while (taken < rounds) static_cast<void>(counted(made.ok() ? "+" : "!"));
  return made;
}

Error CommunicatorImpl::end_by_exception() noexcept {
  Error error = error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(membership_.rank),
                                   "an internal failure of this rank");
  fail(error);
  engine_.end_all();  // the caller gets an error and may free its buffers, so nothing may use them any more
  return error;
}

Status CommunicatorImpl::check_special(const CollectiveCall& call, const CallOptions& options) const {
  if (options.uniform &&
      (membership_.job_context == nullptr || membership_.job_context->config.uniform == UniformCalls::kNone)) {
    return invalid_argument(
        "this communicator has no uniform calls: set CommunicatorOptions::uniform, or TUTTI_UNIFORM=calls, on all "
        "ranks");
  }
  if (options.stream || HostStaging::is_device_memory(call.input, 1) || HostStaging::is_device_memory(call.output, 1)) {
    return invalid_argument("a call on device memory, or with a stream, cannot be uniform or ask for checksums");
  }
  return {};
}

Status CommunicatorImpl::run(const CollectiveCall& call, const CallOptions& options) {
  if (options.uniform || options.checksum) TUTTI_TRY(check_special(call, options));
  if (uniform_ && !options.stream) return uniform_->run(call, options);
  if (!options.uniform) return run_plain(call, options);
  CallOptions plain = options;  // there is only one rank, so no vote is needed
  plain.uniform = false;
  return run_plain(call, plain);
}

// Refuses all calls that this communicator would refuse before they begin, because after the barrier of a call with a
// checksum the other ranks would wait for this rank.
Status CommunicatorImpl::check_before_checksum(const CollectiveCall& call, const CallOptions& options) {
  const std::scoped_lock lock(mutex_);
  TUTTI_TRY(groups_.refuse());
  if (operations_.plans().has_user_plans()) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 "a call cannot ask for checksums on a communicator with plans of the program (use_plan()): set "
                 "TUTTI_CHECKSUM=1 on all ranks"};
  }
  const auto prepared = operations_.prepare(call, options);
  return prepared.ok() ? Status() : prepared.error();
}

Status CommunicatorImpl::run_with_checksum(const CollectiveCall& call, const CallOptions& options) {
  const bool has_messages = membership_.ranks > 1;
  const bool has_checksums = membership_.job_context != nullptr && membership_.job_context->config.checksum;
  CallOptions plain = options;
  plain.checksum = false;
  if (!has_messages || has_checksums) return run_plain(call, plain);
  TUTTI_TRY(check_before_checksum(call, plain));
  return checksum_calls_.run(call, plain);
}

Status CommunicatorImpl::run_plain(const CollectiveCall& call, const CallOptions& options, CallPurpose purpose) {
  if (options.checksum) return run_with_checksum(call, options);
  std::unique_lock lock(mutex_);
  TUTTI_TRY(groups_.refuse());
  if (is_exchange(call)) return run_operation(operations_.prepare(call, options), lock);
  CheckedCall checked;
  TUTTI_TRY(check_call(checked, call, options, membership_.caller()));
  if (purpose != CallPurpose::kApplication) {
    TUTTI_ASSERT(checked.call.tag.digest == 0);
    checked.call.tag.digest = static_cast<std::uint32_t>(purpose);
  }
  if (auto status = operations_.run_short(checked, options, lock)) return *std::move(status);
  return run_operation(operations_.prepare_collective(std::move(checked), options), lock);
}

Status CommunicatorImpl::run_operation(const Result<std::shared_ptr<Operation>>& prepared,
                                       std::unique_lock<std::mutex>& submission) {
  if (!prepared) return prepared.error();
  Operation& operation = **prepared;
  TUTTI_TRY(submit(*prepared, Engine::Progress::kByCaller));
  submission.unlock();
  if (operation.start_condition != nullptr) return settle(operation);
  Status result = engine_.wait(operation);
  // Wait for all segments even if one fails, because they use the caller's buffers until they have ended.
  for (const auto& segment : operation.rest) {
    Status one = engine_.wait(*segment);
    if (result.ok()) result = std::move(one);
  }
  return result;
}

Result<Work> CommunicatorImpl::start(const CollectiveCall& call, const CallOptions& options) {
  std::unique_lock lock(mutex_);
  TUTTI_TRY(groups_.refuse());
  return start_operation(operations_.prepare(call, options), lock);
}

// The Work is made before the operation is submitted, because an allocation must not fail once the operation uses the
// caller's buffers.
Result<Work> CommunicatorImpl::start_operation(const Result<std::shared_ptr<Operation>>& prepared,
                                               std::unique_lock<std::mutex>& submission) {
  if (!prepared) return prepared.error();
  const std::shared_ptr<Operation>& operation = *prepared;
  std::vector<WorkImpl::Part> parts;
  WorkImpl::add(engine_, operation, parts);
  Work work(std::make_shared<WorkImpl>(std::move(parts)));
  TUTTI_TRY(submit(operation, Engine::Progress::kInBackground));
  submission.unlock();
  TUTTI_TRY(settle(*operation));
  return work;
}

Status CommunicatorImpl::settle(const Operation& operation) {
  if (operation.on_device) return devices_->settle(operation);
  Status status = HostStaging::settle(engine_, operation);
  for (const auto& segment : operation.rest) {
    Status one = HostStaging::settle(engine_, *segment);
    if (status.ok()) status = std::move(one);
  }
  return status;
}

Status CommunicatorImpl::submit(const std::shared_ptr<Operation>& operation, Engine::Progress progress) {
  if (operation->on_device) return devices_->submit(*operation);
  const bool on_host = operation->start_condition == nullptr && operation->rest.empty();
  Status submitted = on_host ? engine_.submit(operation, progress) : HostStaging::submit(engine_, operation, progress);
  if (!submitted.ok() && submitted.error().scope >= ErrorScope::kCommunicator) devices_->fail(submitted.error());
  return submitted;
}

Result<Memory> CommunicatorImpl::allocate(std::size_t bytes) {
  auto memory = allocate_memory(*environment_.transport, bytes);
  if (!memory) return memory.error();
  return Memory(std::move(*memory));
}

Result<Memory> CommunicatorImpl::register_memory(void* data, std::size_t bytes) {
  if (data == nullptr || bytes == 0)
    return invalid_argument("there is no memory to register: data is null or bytes is 0");
  const auto registered = [&]() -> Result<std::unique_ptr<MemoryImpl>> {
    const bool on_device = bytes <= kMaxBytes && HostStaging::is_device_memory(data, bytes);
    if (!on_device) return register_host_memory(*environment_.transport, data, bytes);
    // GPUs carry out no whole calls, so this register_memory() returns kUnsupported.
    if (!devices_->runs_on_devices()) return devices_->register_memory(data, bytes);
    // The other ranks wait for this one in the rounds of the registration, so an exception ends the communicator.
    return guarded([&] { return devices_->register_memory(data, bytes); });
  };
  auto memory = registered();
  if (!memory) return memory.error();
  return Memory(std::move(*memory));
}

Result<Agreement> CommunicatorImpl::agree(const AgreeOptions& options) {
  return agreements_.agree(options, uniform_ ? &*uniform_ : nullptr);
}

Status CommunicatorImpl::async_status() {
  if (auto failed = devices_->failure()) return *std::move(failed);
  const std::scoped_lock lock(mutex_);
  auto error = operations_.take_staging_error();
  if (!error) error = devices_->take_error();
  if (!error) return {};
  if (error->scope == ErrorScope::kProcess) engine_.fail(*error);
  return *std::move(error);
}

Status CommunicatorImpl::finalize() {
  Status on_device = devices_->finish();
  // Finalize the engine even if calls on device memory failed or did not end, because the peers wait for this rank.
  Status on_host = engine_.finalize();
  Status on_twin = checksum_calls_.finalize();
  if (on_host.ok()) on_host = std::move(on_twin);
  return on_device.ok() ? on_host : on_device;
}

void CommunicatorImpl::abort() {
  devices_->abort();
  engine_.abort();
  checksum_calls_.abort();
}

void CommunicatorImpl::fail(const Error& error) noexcept {
  devices_->fail(error);
  engine_.fail(error);
}

}  // namespace tutti::detail
