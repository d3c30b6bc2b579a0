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

// Returns the value for CallOptions::stream of a call on `buffer` in `stream`: nothing for host memory, the stream for
// device memory. A call on host memory runs immediately, so this function first waits for the work that is in the
// stream, if the thread has a current context. Errors: kUnsupported (host memory in a stream that is being captured),
// kDevice.
Result<std::optional<void*>> order_in_stream(const void* buffer, void* stream);

// Copies `bytes` bytes (at most 8) from host or device memory to host memory, after the work that is in `stream` now
// has finished. Errors: as order_in_stream().
Status read_in_stream(const void* from, void* to, std::size_t bytes, void* stream);

// All sends and receives of one group on one communicator use a single stream. If the program passed several streams
// for them, fork() makes that stream wait for the others, and join() makes the others wait for it after the transfers.
class JoinedStreams {
 public:
  static Result<JoinedStreams> fork(std::span<const GroupCall> calls);
  // The stream to use for this transfer.
  void* of(const GroupCall& transfer) const;
  Status join();

 private:
  // The streams of one communicator: the first that the group named, which is used, and the others.
  struct Member {
    void* first = nullptr;
    std::vector<void*> others;
  };
  std::map<const Comm*, Member> members_;
};

}  // namespace tutti::nccl
