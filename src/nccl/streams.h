// What the C face does with streams. Without a CUDA driver in the process streams are not looked at.
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

// What CallOptions::stream is for a call on `buffer` in `stream`. A call on host memory runs at once, so what the
// stream holds is waited for first, as far as the thread has a context. Errors: kUnsupported (host memory in a stream
// that captures), kDevice.
Result<std::optional<void*>> order_in_stream(const void* buffer, void* stream);

// Copies `bytes` (at most 8) from host or device memory, as they are when `stream` has come here. Errors: as above.
Status read_in_stream(const void* from, void* to, std::size_t bytes, void* stream);

// The transfers of a group on one communicator go by one stream. Where they were given several, that one waits for the
// others first (fork), and they wait for it afterwards (join).
class JoinedStreams {
 public:
  static Result<JoinedStreams> fork(std::span<const GroupCall> calls);
  void* of(const GroupCall& transfer) const;
  Status join();

 private:
  struct Member {
    void* first = nullptr;
    std::vector<void*> others;
  };
  std::map<const Comm*, Member> members_;
};

}  // namespace tutti::nccl
