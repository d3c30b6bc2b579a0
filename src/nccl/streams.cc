#include "nccl/streams.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "cuda/driver.h"
#include "cuda/pointer.h"
#include "nccl/group.h"

namespace tutti::nccl {
namespace {

cuda::CUstream handle(void* stream) { return static_cast<cuda::CUstream>(stream); }

bool on_device(const cuda::PointerInfo& info) {
  return info.kind == cuda::MemoryKind::kDevice || info.kind == cuda::MemoryKind::kManaged;
}

// Waits for the work in `stream`. Errors: kUnsupported if the stream is being captured into a graph, because its work
// then does not run now and cannot be waited for; kDevice. `what` begins the message of kUnsupported, for example "a
// call on host memory".
Status wait_for(const cuda::Driver& driver, void* stream, const char* what) {
  auto capturing = cuda::CaptureStatus::kNone;
  TUTTI_TRY(
      driver.check(driver.api().stream_is_capturing(handle(stream), &capturing), "asking whether a stream captures"));
  if (capturing != cuda::CaptureStatus::kNone) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 std::string(what) + " cannot be part of a CUDA graph, but the stream captures one: use device memory"};
  }
  return driver.check(driver.api().stream_synchronize(handle(stream)), "waiting for a stream");
}

// Makes the stream `behind` wait for the work that is in `stream` now.
Status put_behind(const cuda::Driver& driver, void* behind, void* stream) {
  auto event = cuda::Event::create(driver);
  if (!event) return event.error();
  TUTTI_TRY(event->record(handle(stream)));
  return driver.check(driver.api().stream_wait_event(handle(behind), event->handle(), 0), "ordering two streams");
}

}  // namespace

bool has_context(const cuda::Driver& driver) {
  cuda::CUcontext context = nullptr;
  return driver.api().ctx_get_current(&context) == cuda::CUresult::kSuccess && context != nullptr;
}

Result<std::optional<void*>> order_in_stream(const void* buffer, void* stream) {
  const cuda::Driver* driver = cuda::Driver::loaded();
  if (driver == nullptr) return std::optional<void*>();
  if (buffer == nullptr) return std::optional<void*>(stream);
  auto info = cuda::classify(*driver, buffer);
  if (!info) return info.error();
  if (on_device(*info)) return std::optional<void*>(stream);
  if (has_context(*driver)) TUTTI_TRY(wait_for(*driver, stream, "a call on host memory"));
  return std::optional<void*>();
}

Status read_in_stream(const char* what, const void* from, void* to, std::size_t bytes, void* stream) {
  const cuda::Driver* driver = cuda::Driver::loaded();
  if (driver != nullptr) {
    auto info = cuda::classify(*driver, from);
    if (!info) return info.error();
    if (!has_context(*driver) && on_device(*info)) {
      return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                   "device memory is given, but the communicator has no device: make it with the device current"};
    }
    if (has_context(*driver)) TUTTI_TRY(wait_for(*driver, stream, what));
    if (on_device(*info)) {
      const auto address = reinterpret_cast<cuda::CUdeviceptr>(from);
      TUTTI_TRY(driver->check(driver->api().memcpy_dtoh_async(to, address, bytes, handle(stream)), what));
      return driver->check(driver->api().stream_synchronize(handle(stream)), "waiting for a stream");
    }
  }
  std::memcpy(to, from, bytes);
  return {};
}

Status record_event(void* event, void* stream) {
  const cuda::Driver* driver = cuda::Driver::loaded();
  TUTTI_ASSERT(driver != nullptr);
  return driver->check(driver->api().event_record(static_cast<cuda::CUevent>(event), handle(stream)),
                       "recording the launchCompletionEvent of a call");
}

Result<JoinedStreams> JoinedStreams::fork(std::span<const GroupCall> calls) {
  JoinedStreams joined;
  const cuda::Driver* driver = cuda::Driver::loaded();
  if (driver == nullptr) return joined;
  for (const GroupCall& one : calls) {
    if (one.kind == GroupCall::CallType::kCollective) continue;
    const auto [member, is_new] =
        joined.members_.try_emplace(one.comm.get(), Member{.first = one.stream, .others = {}});
    std::vector<void*>& others = member->second.others;
    if (is_new || one.stream == member->second.first) continue;
    if (std::find(others.begin(), others.end(), one.stream) != others.end()) continue;
    others.push_back(one.stream);
    const auto scope = one.comm->enter_device();
    if (!scope) return scope.error();
    TUTTI_TRY(put_behind(*driver, member->second.first, one.stream));
  }
  return joined;
}

void* JoinedStreams::of(const GroupCall& transfer) const {
  const auto found = members_.find(transfer.comm.get());
  return found == members_.end() ? transfer.stream : found->second.first;
}

Status JoinedStreams::join() {
  for (const auto& [comm, member] : members_) {
    const auto scope = comm->enter_device();
    if (!scope) return scope.error();
    for (void* other : member.others) TUTTI_TRY(put_behind(*cuda::Driver::loaded(), other, member.first));
  }
  return {};
}

}  // namespace tutti::nccl
