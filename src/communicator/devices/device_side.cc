#include "communicator/devices/device_side.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/native/device_failure.h"
#include "device/native/device_resources.h"

namespace tutti::detail {
namespace {

constexpr std::chrono::seconds kEmptyLimit{5};
constexpr std::chrono::milliseconds kEmptyPoll{1};

}  // namespace

DeviceSide::DeviceSide(const Membership& membership, const Environment& environment, Engine& engine,
                       std::mutex& submission_mutex, std::unique_ptr<DeviceResources> resources,
                       std::unique_ptr<AcrossMachines> across, Gather parent_round)
    : membership_(membership),
      environment_(environment),
      engine_(engine),
      submission_mutex_(submission_mutex),
      parent_round_(std::move(parent_round)),
      across_(std::move(across)),
      executor_(make_executor(std::move(resources))) {}

std::shared_ptr<DeviceExecutor> DeviceSide::make_executor(std::unique_ptr<DeviceResources> resources) const {
  if (resources == nullptr) return nullptr;
  // Shared with functions of other threads that may still use the executor when it is replaced.
  return std::make_shared<DeviceExecutor>(std::move(resources), membership_.rank, membership_.ranks,
                                          *environment_.plan_cache);
}

void DeviceSide::connect_to_engine() {
  listen_to(executor().get());
  if (across_ == nullptr) return;
  across_->connect_to_engine(engine_.handle());
}

// A LaunchGroup may report a failure from any thread, and may outlive the engine; therefore it gets the EngineHandle,
// which is safe in both cases.
void DeviceSide::listen_to(DeviceExecutor* executor) {
  engine_.set_beside_devices(executor != nullptr || across_ != nullptr);
  if (executor == nullptr) return;
  executor->on_failure([handle = engine_.handle()](const Error& error) { handle->fail(error); });
}

std::optional<Error> DeviceSide::failure() {
  if (across_ != nullptr) return across_->failure();
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  return executor == nullptr ? std::nullopt : executor->failure(true);
}

void DeviceSide::fail(const Error& error) noexcept {
  if (across_ != nullptr) across_->fail(error);
  if (const std::shared_ptr<DeviceExecutor> executor = this->executor()) executor->fail(error);
}

void DeviceSide::abort() {
  if (across_ != nullptr) across_->abort();
  if (const std::shared_ptr<DeviceExecutor> executor = this->executor()) executor->abort();
}

Status DeviceSide::finish() {
  if (across_ != nullptr) return across_->finish();
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  return executor == nullptr ? Status() : executor->finish();
}

Result<bool> DeviceSide::takes(const CheckedCall& checked, const CallOptions& options) {
  if (across_ != nullptr) return across_->takes(checked, options);
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  if (executor == nullptr || options.reduction.combine != nullptr) return false;
  auto taken = executor->takes(checked);
  if (!taken) return escalate(*executor, taken.error(), checked.call.tag);
  return taken;
}

GpuUse DeviceSide::gpu_use() const {
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  if (executor == nullptr) return GpuUse::kNone;
  return executor->is_on_one_gpu() ? GpuUse::kOneGpu : GpuUse::kSeveralGpus;
}

// Handles an error of the executor. If it affects more than this call (scope kCommunicator or wider), this rank cannot
// take part any more, so its executor and its engine fail, and the peers are notified. Errors of smaller scope, errors
// that the peers detect by themselves (peers_see()), and errors after the executor has failed are returned unchanged.
Error DeviceSide::escalate(DeviceExecutor& executor, const Error& error, const CallTag& tag) {
  if (error.scope < ErrorScope::kCommunicator || peers_see(error.code) || executor.failure(false)) return error;
  const Error lost = lost_error(error, membership_.rank, &tag);
  executor.fail(lost);
  engine_.fail(lost);
  return lost;
}

Result<std::shared_ptr<Operation>> DeviceSide::prepare(const CheckedCall& checked, const CallOptions& options,
                                                       Algorithm algorithm, const PlanTable::ChosenPlan* chosen,
                                                       std::int64_t timeout_ns) {
  if (across_ != nullptr) {
    if (chosen != nullptr) return std::shared_ptr<Operation>();  // a plan is for all ranks of the communicator
    return across_->prepare(checked, options);
  }
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  TUTTI_ASSERT(executor != nullptr);  // takes() was true, and the submission mutex was held since then
  auto generator = PlanTable::generator_for(checked.collective, algorithm, chosen);
  if (!generator) return generator.error();
  const std::uint32_t digest = chosen == nullptr ? 0 : chosen->plan.digest();
  CheckedCall tagged = checked;
  tagged.call.tag.algorithm = static_cast<std::uint8_t>(algorithm);
  tagged.call.tag.digest ^= digest;
  auto on_device = executor->prepare(tagged, *generator, digest, options, timeout_ns);
  if (!on_device) return escalate(*executor, on_device.error(), tagged.call.tag);
  if (*on_device == nullptr) return std::shared_ptr<Operation>();
  return operation_of(std::move(*on_device));
}

std::shared_ptr<Operation> DeviceSide::operation_of(std::shared_ptr<DeviceCall> call) {
  auto operation = std::make_shared<Operation>();
  operation->on_device = true;
  operation->done = true;
  operation->call.tag = call->tag;
  operation->start_condition = std::move(call);
  return operation;
}

Result<bool> DeviceSide::takes(const CheckedExchange& exchange) {
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  if (executor == nullptr) return false;
  auto taken = executor->takes(exchange);
  if (!taken) return escalate(*executor, taken.error(), exchange.tag());
  return taken;
}

Result<std::shared_ptr<Operation>> DeviceSide::prepare(CheckedExchange exchange, std::shared_ptr<Operation> empty,
                                                       const CallOptions& options, std::int64_t timeout_ns) {
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  TUTTI_ASSERT(executor != nullptr);  // takes() was true, and the submission mutex was held since then
  const CallTag tag = exchange.tag();
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const Transfer& transfer : exchange.transfers)
    (transfer.direction == Direction::kSend ? sent : received) += transfer.tag.count;
  auto made = executor->prepare(std::move(exchange), std::move(empty), options, timeout_ns);
  if (!made) return escalate(*executor, made.error(), tag);
  std::shared_ptr<Operation> operation = operation_of(std::move(*made));
  operation->call.tag.count = std::max(sent, received);  // for the recorder
  return operation;
}

Status DeviceSide::submit(const Operation& operation) {
  if (across_ != nullptr) {
    if (environment_.recorder != nullptr) environment_.recorder->enqueued(operation.call.tag);
    return across_->submit(operation);
  }
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  const auto call = std::static_pointer_cast<DeviceCall>(operation.start_condition);
  if (executor == nullptr || !executor->prepared(*call)) {
    return invalid_argument(
        "the communicator was suspended after this call was added to a Group: make a new Group after resume()");
  }
  const std::shared_ptr<Operation> empty = call->transfers ? call->transfers->empty : nullptr;
  if (empty != nullptr && engine_.capacity() == 0) {
    return invalid_argument("too many operations of this communicator are under way: wait for some of them first");
  }
  if (environment_.recorder != nullptr) environment_.recorder->enqueued(operation.call.tag);
  if (!call->transfers) call->number = collectives_ + 1;
  Status submitted = executor->submit(call);
  if (submitted.ok()) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (!call->transfers && !call->is_captured()) environment_.transport->publish_device_calls(++collectives_);
  }
  if (!submitted.ok() && submitted.error().scope >= ErrorScope::kCommunicator) engine_.fail(submitted.error());
  if (!submitted.ok() || empty == nullptr) return submitted;
  std::erase_if(empty_, [](const auto& one) { return one->done && one->result.ok(); });
  empty_.push_back(empty);
  // In the background, because the call returns before its stream has run it.
  const Status queued = engine_.submit(empty, Engine::Progress::kInBackground);
  if (queued.ok()) return submitted;
  empty_.pop_back();                                 // it was never begun, so wait_for_empty() must not wait for it
  const Error error = broken_error(queued.error());  // the other transfers are in the stream already
  executor->fail(error);
  engine_.fail(error);
  return error;
}

std::optional<Error> DeviceSide::take_error() {
  const auto failed = std::ranges::find_if(empty_, [](const auto& one) { return one->done && !one->result.ok(); });
  if (failed == empty_.end()) return std::nullopt;
  Error error = (*failed)->result.error();
  empty_.erase(failed);
  return error;
}

void DeviceSide::wait_for_empty() noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kEmptyLimit;
  runs_through([&] {
    for (const std::shared_ptr<Operation>& one : empty_) {
      while (!engine_.test(*one) && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(kEmptyPoll);
    }
  });
}

Status DeviceSide::settle(const Operation& operation) {
  if (!operation.on_device) return {};
  // Null for an AcrossCall, whose parts are settled when they are submitted.
  auto* const call = dynamic_cast<DeviceCall*>(operation.start_condition.get());
  return call == nullptr ? Status() : call->settle();
}

// Every rank takes part in the rounds of set-up, with its memory or with its error, so that the other ranks do not
// wait until the timeout.
Result<std::unique_ptr<MemoryImpl>> DeviceSide::register_memory(void* data, std::size_t bytes) {
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  if (executor == nullptr) {
    return Error{
        ErrorCode::kUnsupported, ErrorScope::kCall, -1,
        fmt::format("{} bytes at {} are memory of a GPU, but the host carries out this communicator's calls on "
                    "such memory, for which registering has no use: leave it out, or give every rank a GPU of "
                    "one machine that reaches the others (TUTTI_LOG=info says what is missing)",
                    bytes, data)};
  }
  const std::shared_ptr<DeviceWindows>& windows = executor->resources().windows();
  auto number = windows->add(data, bytes, parent_round_);
  if (number) return std::make_unique<MemoryImpl>(std::make_unique<DeviceWindow>(windows, *number), data, bytes);
  Error error = std::move(number).error();
  error.message = fmt::format("register_memory: {}", error.message);
  return with_call_scope(std::move(error));
}

// Returns an error of a round among all ranks. Its scope is kCall as long as the communicator can be used.
Error DeviceSide::with_call_scope(Error error) {
  if (!engine_.broken()) error.scope = ErrorScope::kCall;
  return error;
}

Status DeviceSide::suspend() {
  if (across_ != nullptr) return suspend_parts();
  Result<std::string> ready = std::string();
  {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    if (executor != nullptr && executor->resources().windows()->used() > 0) {
      ready = invalid_argument("device memory is registered with this communicator: release it on all ranks first");
    } else if (executor != nullptr) {
      if (const Status finished = executor->finish(); !finished.ok()) ready = finished.error();
    }
  }
  // All ranks suspend, or no rank does, unless this round fails on some ranks only.
  if (auto all = gather_or_fail(parent_round_, ready); !all) {
    return with_call_scope(std::move(all).error());
  }
  replace(nullptr, true);
  return wait_until_freed();
}

// Waits until every rank has freed its memory. Ranks of one process share some of it, and the last one frees it in the
// context of the rank to which it belongs. The driver then waits for the work on that GPU, which must not be a call
// that waits for this very rank.
Status DeviceSide::wait_until_freed() {
  const auto all = gather_or_fail(parent_round_, std::string());
  return all.ok() ? Status() : Status(with_call_scope(all.error()));
}

Status DeviceSide::resume() {
  if (across_ != nullptr) return resume_parts();
  {
    const std::scoped_lock lock(mutex_);
    if (!suspended_) return {};
  }
  std::uint64_t id = 0;
  Result<std::string> mine = Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random numbers"};
  if (getrandom(&id, sizeof(id), 0) == static_cast<ssize_t>(sizeof(id))) {
    mine = std::string(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  auto ids = gather_or_fail(parent_round_, mine);
  if (!ids) return with_call_scope(std::move(ids).error());
  if (ids->front().size() != sizeof(id)) {
    return Error{ErrorCode::kRefused, ErrorScope::kCall, 0, "rank 0 sent a malformed message in resume()"};
  }
  std::memcpy(&id, ids->front().data(), sizeof(id));
  auto resources = make_device_resources(*membership_.job_context, membership_.members, membership_.rank, id,
                                         environment_, parent_round_);
  // In both cases, memory that was allocated above has been freed again.
  if (!resources || *resources == nullptr) static_cast<void>(wait_until_freed());
  if (!resources) return with_call_scope(std::move(resources).error());
  replace(make_executor(std::move(*resources)), false);
  return {};
}

// A round of all ranks after a step on this rank's machine, which may have failed there.
Status DeviceSide::agree_on(const Status& step) {
  Result<std::string> result = std::string();
  if (!step.ok()) {
    Error error = step.error();
    // The error is about another rank, which also reports it. See gather_or_fail().
    if (error.rank >= 0 && error.rank != static_cast<std::int32_t>(membership_.rank)) error.code = ErrorCode::kPeerLost;
    result = std::move(error);
  }
  const auto all = gather_or_fail(parent_round_, result);
  return all.ok() ? Status() : Status(with_call_scope(all.error()));
}

// All machines suspend, or none does, unless a round fails on some ranks only. So all ranks divide the same calls into
// parts.
Status DeviceSide::suspend_parts() {
  TUTTI_TRY(agree_on(across_->drain()));
  return agree_on(across_->suspend());
}

// The same for resume().
Status DeviceSide::resume_parts() {
  Status resumed = across_->resume();
  if (resumed.ok() && !across_->runs_on_devices()) {
    resumed = Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                    "the GPUs of this machine cannot carry out calls any more: see the warning of its first rank"};
  }
  Status agreed = agree_on(resumed);
  if (!agreed.ok() && resumed.ok()) static_cast<void>(across_->suspend());
  return agreed;
}

// Installs a new executor, or none. The previous executor is destroyed after the mutexes are unlocked, because its
// destructor waits for the GPU.
void DeviceSide::replace(std::shared_ptr<DeviceExecutor> executor, bool suspended) {
  listen_to(executor.get());  // registered before any call can be submitted to the new executor
  const std::scoped_lock lock(submission_mutex_, mutex_);
  // A repeated suspend() finds no executor, but resume() must still make one, so suspended_ stays true. If the host
  // carried out the calls anyway, there was nothing to suspend, and resume() has nothing to do.
  suspended_ = suspended && (suspended_ || executor_ != nullptr);
  executor_.swap(executor);
}

std::uint64_t DeviceSide::memory_use() const {
  if (across_ != nullptr) return across_->memory_use();
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  return executor == nullptr ? 0 : executor->resources().memory_bytes();
}

}  // namespace tutti::detail
