// The part of CommunicatorImpl that deals with GPUs: which calls the GPUs carry out, how these are prepared and
// submitted, and what happens when a GPU fails.
#include <fmt/format.h>

#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "communicator/user_plan.h"
#include "device/native/device_calls.h"
#include "device/native/device_failure.h"

namespace tutti::detail {

Result<bool> CommunicatorImpl::runs_on_device(const CallOptions& options, const CheckedCall& checked) {
  if (device_executor_ == nullptr || options.reduction.combine != nullptr) return false;
  return device_executor_->takes(checked);
}

// Handles an error of the device executor that has cost more than the call. This rank cannot take part any more, so
// its executor and its engine fail, and the peers are notified. Errors that the peers detect by themselves
// (peers_see()) and errors of a single call are returned unchanged.
Error CommunicatorImpl::escalate_device_error(const Error& error, const CallTag& tag) {
  if (error.scope < ErrorScope::kCommunicator || peers_see(error.code) || device_executor_->failure(false))
    return error;
  const Error lost = lost_error(error, rank_, &tag);
  device_executor_->fail(lost);
  engine_.fail(lost);
  return lost;
}

// Call this after device_executor_ was replaced. A LaunchGroup may report a failure from any thread, and may outlive
// the engine; therefore it gets the EngineHandle, which is safe in both cases.
void CommunicatorImpl::listen_to_devices() {
  engine_.set_beside_devices(device_executor_ != nullptr);
  if (device_executor_ == nullptr) return;
  device_executor_->on_failure([handle = engine_.handle()](const Error& error) { handle->fail(error); });
}

// Returns null if the host has to carry out the call.
Result<std::shared_ptr<Operation>> CommunicatorImpl::prepare_on_device(const CheckedCall& checked,
                                                                       const CallOptions& options, Algorithm algorithm,
                                                                       const ChosenPlan* chosen) {
  auto generator = generator_for(checked.collective, algorithm, chosen);
  if (!generator) return generator.error();
  const std::uint32_t digest = chosen == nullptr ? 0 : chosen->plan.digest();
  CheckedCall tagged = checked;
  tagged.call.tag.algorithm = static_cast<std::uint8_t>(algorithm);
  tagged.call.tag.digest ^= digest;
  auto on_device = device_executor_->prepare(tagged, *generator, digest, options, timeout_ns(options));
  if (!on_device) return escalate_device_error(on_device.error(), tagged.call.tag);
  if (*on_device == nullptr) return std::shared_ptr<Operation>();
  auto operation = std::make_shared<Operation>();
  operation->on_device = true;
  operation->done = true;
  operation->call.tag = tagged.call.tag;
  operation->start_condition = std::move(*on_device);
  return operation;
}

// register_memory() for device memory. Every rank takes part in the rounds of set-up, with its memory or with its
// error, so that the other ranks do not wait until the timeout.
Result<Memory> CommunicatorImpl::register_on_device(void* data, std::size_t bytes) {
  if (device_executor_ == nullptr) {
    return Error{
        ErrorCode::kUnsupported, ErrorScope::kCall, -1,
        fmt::format("{} bytes at {} are memory of a GPU, but the host carries out this communicator's calls on "
                    "such memory, for which registering has no use: leave it out, or give every rank a GPU of "
                    "one machine that reaches the others (TUTTI_LOG=info says what is missing)",
                    bytes, data)};
  }
  // The other ranks wait in the rounds, so an exception ends the communicator.
  return guarded([&] { return share_device_memory(data, bytes); });
}

// Exports the memory to the other ranks and maps theirs. Collective, like register_memory() on device memory.
Result<Memory> CommunicatorImpl::share_device_memory(void* data, std::size_t bytes) {
  const std::shared_ptr<DeviceWindows>& windows = device_executor_->resources().windows();
  auto number = windows->add(data, bytes, [this](const std::string& blob) { return all_gather_blobs(blob); });
  if (number) {
    return Memory(std::make_unique<MemoryImpl>(std::make_unique<DeviceWindow>(windows, *number), data, bytes));
  }
  Error error = std::move(number).error();
  error.message = fmt::format("register_memory: {}", error.message);
  if (!engine_.broken()) error.scope = ErrorScope::kCall;
  return error;
}

Status CommunicatorImpl::submit(const std::shared_ptr<Operation>& operation, Engine::Progress progress) {
  if (!operation->on_device) {
    Status submitted = HostStaging::submit(engine_, operation, progress);
    if (!submitted.ok() && submitted.error().scope >= ErrorScope::kCommunicator && device_executor_ != nullptr) {
      device_executor_->fail(submitted.error());
    }
    return submitted;
  }
  if (environment_.recorder != nullptr) environment_.recorder->enqueued(operation->call.tag);
  Status submitted = device_executor_->submit(std::static_pointer_cast<DeviceCall>(operation->start_condition));
  if (submitted.ok()) calls_on_device_.fetch_add(1, std::memory_order_relaxed);
  if (!submitted.ok() && submitted.error().scope >= ErrorScope::kCommunicator) engine_.fail(submitted.error());
  return submitted;
}

Status CommunicatorImpl::settle(const Operation& operation) {
  return operation.on_device ? static_cast<DeviceCall&>(*operation.start_condition).settle() : Status();
}

Status CommunicatorImpl::finalize() {
  if (device_executor_ != nullptr) TUTTI_TRY(device_executor_->finish());
  return engine_.finalize();
}

void CommunicatorImpl::abort() {
  {
    const std::scoped_lock lock(device_mutex_);
    if (device_executor_ != nullptr) device_executor_->abort();
  }
  engine_.abort();
}

Status CommunicatorImpl::async_status() {
  if (device_executor_ != nullptr) {
    if (auto failed = device_executor_->failure(true)) return *std::move(failed);
  }
  const std::scoped_lock lock(mutex_);
  if (host_staging_ == nullptr) return {};
  auto error = host_staging_->take_error();
  if (!error) return {};
  if (error->scope == ErrorScope::kProcess) engine_.fail(*error);
  return *std::move(error);
}

std::uint64_t calls_on_device(const Communicator& communicator) {
  return CommunicatorImpl::of(communicator).calls_on_device();
}

}  // namespace tutti::detail
