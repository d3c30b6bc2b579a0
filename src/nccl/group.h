// Groups: the calls that a thread makes between ncclGroupStart() and the matching ncclGroupEnd() are collected here
// and started together by ncclGroupEnd(). Each thread has its own open group, as NCCL's interface requires. At the end
// of a group, its jobs run first (for example the creation of communicators), at the same time if they have no
// communicator in common; then its calls, all at the same time; then its one-sided calls, one after the other.
//
// Calls on host memory: if the communicator is blocking, the call has finished when the function, or ncclGroupEnd(),
// returns. If the communicator is nonblocking, or any communicator of the group's calls is, the call continues, and
// ncclCommGetAsyncError() reports its end. Calls on device memory are enqueued in their streams.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "nccl.h"
#include "nccl/comm.h"
#include "tutti/communicator.h"

namespace tutti::nccl {

// A collective, or one side of a transfer (a send or a receive). Its arguments have been checked.
struct GroupCall {
  enum class CallType : std::uint8_t { kCollective, kSend, kReceive };
  CommPtr comm{};
  CallType kind = CallType::kCollective;
  CollectiveCall call{};   // a send uses only input, count and type; a receive only output, count and type
  std::int32_t peer = -1;  // the other rank of a transfer; -1 for a collective
  Algorithm algorithm = Algorithm::kAuto;
  std::optional<CustomOp> custom{};  // set for a pre-multiplied sum
  void* stream = nullptr;
};

// A one-sided call: ncclPutSignal() or ncclSignal() if `waits` is false, ncclWaitSignal() if it is true.
struct OneSided {
  bool waits = false;
  std::function<ncclResult_t()> body;
};

// Whether this thread has called ncclGroupStart() without the matching ncclGroupEnd() yet.
bool group_is_open();

// Run the operation now if this thread has no open group; otherwise add it to the open group, and return ncclSuccess.
// The group's end then runs the operation. `function` is the name for error messages.
ncclResult_t run_call(const char* function, GroupCall call);
ncclResult_t run_job(Job job);
// At the end of a group, puts and signals run before waits, so that two ranks that each put and wait do not wait for
// each other.
ncclResult_t run_one_sided(OneSided one);

// Every function that is allowed in a group returns its result through this function. If a group is open, the first
// error is stored, and ncclGroupEnd() returns it without running the group.
ncclResult_t in_group(ncclResult_t result);

}  // namespace tutti::nccl
