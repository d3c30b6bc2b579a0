// Groups: what a thread calls between ncclGroupStart() and the matching ncclGroupEnd() is kept here, and starts there
// as one. The state is the thread's, as NCCL's interface wants it. At the end come the jobs (communicators that are
// made in the group, ...), all at once, then the calls, all at once.
//
// Host memory: a call of a blocking communicator has ended when the function, or ncclGroupEnd(), returns; of one that
// is not blocking it goes on, and ncclCommGetAsyncError() tells its end. Device memory: calls are put into their
// streams.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "nccl.h"
#include "nccl/comm.h"
#include "tutti/communicator.h"

namespace tutti::nccl {

// A collective, or one side of a transfer, with checked arguments.
struct GroupCall {
  enum class Kind : std::uint8_t { kCollective, kSend, kReceive };
  CommPtr comm{};
  Kind kind = Kind::kCollective;
  CollectiveCall call{};   // of a transfer: input or output, count, type
  std::int32_t peer = -1;  // of a transfer
  Algorithm algorithm = Algorithm::kAuto;
  std::optional<CustomOp> custom{};  // of a pre-multiplied sum
  void* stream = nullptr;
};

// A put or signal, or a wait for signals.
struct OneSided {
  bool waits = false;
  std::function<ncclResult_t()> body;
};

bool group_is_open();

// Run it now, or keep it for the end of the open group.
ncclResult_t run_call(const char* function, GroupCall call);
ncclResult_t run_job(Job job);
ncclResult_t run_one_sided(OneSided one);  // in a group: what does not wait comes first

// What every function that may stand in a group returns: an error makes the whole group end with it.
ncclResult_t in_group(ncclResult_t result);

}  // namespace tutti::nccl
