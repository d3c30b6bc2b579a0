// Helpers of the NCCL interface for CUDA streams. If the process has not loaded a CUDA driver, streams are ignored.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cuda/resources.h"
#include "nccl/comm.h"
#include "tutti/result.h"

namespace tutti::nccl {

struct GroupCall;

// Whether the calling thread has a current CUDA context.
bool has_context(const cuda::Driver& driver);

// Returns the value for CallOptions::stream of a call on `buffer` in `stream`: `stream` for device memory, for managed
// memory and for a null buffer; nothing for host memory, and always nothing without a CUDA driver. A call on host
// memory runs immediately, so this function first waits for the work that is in the stream, if the thread has a current
// context. Errors: kUnsupported (host memory, but the stream is being captured into a graph), kDevice.
Result<std::optional<void*>> order_in_stream(const void* buffer, void* stream);

// Copies `bytes` bytes from host or device memory to host memory, after the work that is in `stream` now has finished.
// (If the thread has no current context, host memory is copied at once.) The copy is complete when the function
// returns. Errors: kInvalidArgument (device memory, but the thread has no current context), kUnsupported (the stream is
// being captured into a graph), kDevice. `what` describes the copy in some of the messages, for example "reading the
// data of a put".
Status read_in_stream(const char* what, const void* from, void* to, std::size_t bytes, void* stream);

// Records the event, a cudaEvent_t, in a stream of the thread's current context. The CUDA driver must be loaded.
// Errors: kDevice.
Status record_event(void* event, void* stream);

// All sends and receives of one group on device memory of one communicator use a single stream: that of the first send
// or receive of the group on this communicator, even if that one is on host memory. If the program passed several
// streams, fork() makes the first stream wait for the others before the transfers, and join() makes the others wait for
// the first stream after the transfers. Collectives are not affected.
class JoinedStreams {
 public:
  static Result<JoinedStreams> fork(std::span<const GroupCall> calls);
  // The stream to use for this transfer.
  void* of(const GroupCall& transfer) const;
  Status join();

 private:
  // The streams that the transfers of one communicator named: the first, which all of them use, and the others.
  struct Member {
    void* first = nullptr;
    std::vector<void*> others;
  };
  std::map<const Comm*, Member> members_;
};

}  // namespace tutti::nccl
