#include "communicator/devices/device_side.h"

#include <fmt/format.h>

#include <utility>

#include "device/native/device_resources.h"
#include "job/job_context.h"

namespace tutti::detail {

DeviceSide::DeviceSide(const Membership& membership, const Environment& environment, Engine& engine,
                       Gather parent_round)
    : membership_(membership), environment_(environment), engine_(engine), parent_round_(std::move(parent_round)) {}

GpuUse DeviceSide::gpu_use() const {
  const std::shared_ptr<DeviceExecutor> executor = this->executor();
  if (executor == nullptr) return GpuUse::kNone;
  return executor->is_on_one_gpu() ? GpuUse::kOneGpu : GpuUse::kSeveralGpus;
}

// If a step of the registration fails on this rank, the rank still takes part in the remaining rounds and sends its
// error to the other ranks. Otherwise these would wait until the timeout.
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

Result<std::vector<std::string>> DeviceSide::round(const Result<std::string>& own) {
  auto all = gather_or_fail(parent_round_, own);
  if (!all) return with_call_scope(std::move(all).error());
  return all;
}

// Returns `error`, the error of a round among all ranks, with the scope kCall as long as the communicator can be used.
Error DeviceSide::with_call_scope(Error error) {
  if (!engine_.broken()) error.scope = ErrorScope::kCall;
  return error;
}

}  // namespace tutti::detail
