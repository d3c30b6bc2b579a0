// The part of a communicator that has to do with devices: which calls they carry out, and what becomes of those.
#include <fmt/format.h>

#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "communicator/user_plan.h"
#include "device/native/device_calls.h"
#include "device/native/device_failure.h"

namespace tutti::detail {

Result<bool> CommunicatorImpl::goes_by_device(const CallOptions& options, const CheckedCall& checked) {
  if (device_executor_ == nullptr || options.reduction.combine != nullptr) return false;
  return device_executor_->takes(checked);
}

// An error of the device way that has cost more than the call: this rank is lost to its peers, which hear of it.
Error CommunicatorImpl::lose(const Error& error, const CallTag& tag) {
  if (error.scope < ErrorScope::kCommunicator || peers_see(error.code) || device_executor_->failure(false))
    return error;
  const Error lost = lost_error(error, rank_, &tag);
  device_executor_->fail(lost);
  engine_.fail(lost);
  return lost;
}

// Where device_executor_ has changed. The team finds out by any thread, and may outlive the engine.
void CommunicatorImpl::listen_to_devices() {
  engine_.set_beside_devices(device_executor_ != nullptr);
  if (device_executor_ == nullptr) return;
  device_executor_->tell([handle = engine_.handle()](const Error& error) { handle->fail(error); });
}

// Null: the host carries it out.
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
  if (!on_device) return lose(on_device.error(), tagged.call.tag);
  if (*on_device == nullptr) return std::shared_ptr<Operation>();
  auto operation = std::make_shared<Operation>();
  operation->on_device = true;
  operation->done = true;
  operation->call.tag = tagged.call.tag;
  operation->start_condition = std::move(*on_device);
  return operation;
}

// All ranks come to the rounds, with their memory or with what is wrong with it, so that none is waited for in vain.
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
