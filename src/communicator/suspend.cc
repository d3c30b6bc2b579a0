// suspend() and resume(): free the GPU memory of a communicator, and allocate it again.
#include <fmt/format.h>
#include <sys/random.h>

#include <cstring>

#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "device/native/device_resources.h"

namespace tutti::detail {

Status CommunicatorImpl::suspend() {
  {
    const std::scoped_lock lock(mutex_);
    TUTTI_TRY(refuse_in_group());
  }
  Result<std::string> ready = std::string();
  if (device_executor_ != nullptr && device_executor_->resources().windows()->used() > 0) {
    ready = invalid_argument("device memory is registered with this communicator: release it on all ranks first");
  } else if (device_executor_ != nullptr) {
    if (const Status finished = device_executor_->finish(); !finished.ok()) ready = finished.error();
  }
  // All ranks suspend, or no rank does.
  const Gather gather = [this](const std::string& blob) { return all_gather_blobs(blob); };
  if (auto all = gather_or_fail(gather, ready); !all) {
    Error error = std::move(all).error();
    if (!engine_.broken()) error.scope = ErrorScope::kCall;
    return error;
  }
  std::unique_ptr<DeviceExecutor> ended;
  {
    const std::scoped_lock lock(mutex_, device_mutex_);
    ended = std::move(device_executor_);
    listen_to_devices();
  }
  suspended_ = suspended_ || ended != nullptr;
  return {};
}

Status CommunicatorImpl::resume() {
  {
    const std::scoped_lock lock(mutex_);
    TUTTI_TRY(refuse_in_group());
  }
  if (!suspended_) return {};
  const Gather gather = [this](const std::string& blob) { return all_gather_blobs(blob); };
  std::uint64_t id = 0;
  Result<std::string> mine = Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random numbers"};
  if (getrandom(&id, sizeof(id), 0) == static_cast<ssize_t>(sizeof(id))) {
    mine = std::string(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  auto ids = gather_or_fail(gather, mine);
  if (!ids) return ids.error();
  if (ids->front().size() != sizeof(id)) {
    return Error{ErrorCode::kRefused, ErrorScope::kCall, 0, "rank 0 sent a malformed message in resume()"};
  }
  std::memcpy(&id, ids->front().data(), sizeof(id));
  auto devices = make_device_resources(*job_context_, members_, rank_, id, environment_, gather);
  if (!devices) return devices.error();
  auto executor = *devices == nullptr
                      ? nullptr
                      : std::make_unique<DeviceExecutor>(std::move(*devices), rank_, ranks_, *environment_.plan_cache);
  const std::scoped_lock lock(mutex_, device_mutex_);
  device_executor_ = std::move(executor);
  listen_to_devices();
  suspended_ = false;
  return {};
}

std::uint64_t CommunicatorImpl::device_memory_use() {
  const std::scoped_lock lock(device_mutex_);
  return device_executor_ == nullptr ? 0 : device_executor_->resources().memory_bytes();
}

}  // namespace tutti::detail
