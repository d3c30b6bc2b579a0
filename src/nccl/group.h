// Groups: the calls that a thread makes between ncclGroupStart() and the matching ncclGroupEnd() are collected here
// and started together by ncclGroupEnd(). Groups nest: only the ncclGroupEnd() of the outermost group starts the calls.
// Each thread has its own open group, as NCCL's interface requires. At the end of a group, its jobs run first (for
// example the creation of communicators), at the same time if they have no communicator in common; then its calls,
// which are started together; then its one-sided calls, one after the other. Jobs of nonblocking communicators are only
// started first, and continue in the background.
//
// Collectives, sends and receives on host memory: if the communicator, or in a group every communicator of the group's
// calls, is blocking, the call has finished when the function, or ncclGroupEnd(), returns. Otherwise the call continues
// in the background, and ncclCommGetAsyncError() reports its end. Calls on device memory are enqueued in their streams.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "nccl.h"
#include "nccl/api.h"
#include "nccl/call_config.h"
#include "nccl/comm.h"
#include "tutti/communicator.h"

namespace tutti::nccl {

// Values of a call for the events of a profiler plugin (call_events.h).
struct CallReport {
  void* api_event = nullptr;   // the plugin's event for the function that the program called; may be null
  std::uint64_t sequence = 0;  // Profiler::count()
};

// A collective, or one side of a transfer (a send or a receive). Its arguments have been checked.
struct GroupCall {
  enum class CallType : std::uint8_t { kCollective, kSend, kReceive };
  CommPtr comm{};
  CallType kind = CallType::kCollective;
  CollectiveCall call{};             // a send uses only input, count and type; a receive only output, count and type
  std::int32_t peer = -1;            // the other rank of a transfer; -1 for a collective
  CallConfig config{};               // of a transfer: the default
  std::optional<CustomOp> custom{};  // set for a pre-multiplied sum
  void* stream = nullptr;
  CallReport report{};
};

// A one-sided call: ncclPutSignal() or ncclSignal() if `waits` is false, ncclWaitSignal() if it is true.
struct OneSided {
  bool waits = false;
  std::function<ncclResult_t()> body;
};

// Whether this thread has called ncclGroupStart() without the matching ncclGroupEnd() yet.
bool group_is_open();

// Run the operation now if this thread has no open group; otherwise add it to the open group, which runs the operation
// at its end, and return ncclSuccess. run_call() returns ncclInvalidUsage if the group is full. `function` is the name
// for error messages.
ncclResult_t run_call(const char* function, GroupCall call);
ncclResult_t run_job(Job job);
// At the end of a group, puts and signals run before waits, so that two ranks that each put and wait do not wait for
// each other.
ncclResult_t run_one_sided(OneSided one);

// If a group is open and `result` is its first error, stores it, so that ncclGroupEnd() returns it without running the
// group. Returns `result`.
ncclResult_t in_group(ncclResult_t result) noexcept;

// The wrapper of the functions that create, change or destroy communicators, register or deregister windows, or make
// calls (except ncclCommInitAll(), which is not part of a group): guarded() and in_group().
template <class Body>
ncclResult_t guarded_in_group(Body&& body) noexcept {
  return in_group(guarded(std::forward<Body>(body)));
}

}  // namespace tutti::nccl
