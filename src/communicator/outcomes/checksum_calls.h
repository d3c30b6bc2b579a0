// ChecksumCalls: runs the calls of one communicator that ask for checksums (CallOptions::checksum). They run on a
// second communicator of the same ranks, the twin, whose messages all have checksums. So the other calls keep their
// direct paths. The first call that asks for checksums makes the twin. Owns no threads. Thread-safe.
//
// Each call that asks for checksums begins with a barrier on the original communicator. The barrier keeps the calls of
// both communicators in one order, and finds ranks that have made another call, or the same call without a checksum.
// The original communicator is broken, too, if a call breaks the twin, or if the barrier fails although the ranks have
// made the same call, for example because a rank is late.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/call_tag.h"
#include "tutti/communicator.h"

namespace tutti::detail {

// Functions of the original communicator that ChecksumCalls uses.
struct OriginalCommunicator {
  // Runs a call without a checksum.
  std::function<Status(const CollectiveCall& call, const CallOptions& options, CallPurpose purpose)> run;
  // Makes the twin, together with all other ranks.
  std::function<Result<std::unique_ptr<Communicator>>()> make_twin;
  // The error that has broken the communicator; success: it is not broken.
  std::function<Status()> broken;
  // Breaks the communicator.
  std::function<void(const Error& error)> fail;
};

class ChecksumCalls {
 public:
  explicit ChecksumCalls(OriginalCommunicator original) : original_(std::move(original)) {}

  // Runs a blocking call with checksums. In `options`, `uniform` and `checksum` must be false. Check the arguments
  // first: if one rank failed after the barrier because of a wrong argument, the others would wait for it until the
  // timeout. Calls of several threads run one after the other. Errors: those of Communicator::run(), and in the first
  // call those of duplicate().
  Status run(const CollectiveCall& call, const CallOptions& options);
  // finalize() and abort() of the original communicator call these for the twin.
  Status finalize();
  void abort();

 private:
  // Runs the barrier.
  Status meet(std::chrono::milliseconds timeout);
  Status make_twin(std::chrono::milliseconds timeout);
  // Breaks both communicators. Returns `error` with the scope of the communicator.
  Error end(Error error);

  const OriginalCommunicator original_;
  std::mutex mutex_;  // held during a call; guards owned_
  std::unique_ptr<Communicator> owned_;
  // The twin, for the functions that must not wait for a call in progress. Null: not made yet.
  std::atomic<Communicator*> twin_{nullptr};
};

}  // namespace tutti::detail
