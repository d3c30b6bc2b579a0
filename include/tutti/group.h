// Group: collectives, sends and receives that start as one, on one communicator or on several.
//
// Whatever the order of the calls in the group, and on however many communicators, it ends on every rank, as long as
// the ranks' groups fit together: every send has its receive, and on each communicator all ranks put the same
// collectives into the group. (Collectives of one communicator are sorted by what they are, so only those that are
// alike in kind, root, count, type, operation and algorithm are told apart by the order of their calls.) Calls of one
// group run at the same time: none may use what another one gives.
//
// Nothing happens before run() or start(); a Group that is destroyed before is forgotten, with a warning in the log.
// While a group holds calls on a communicator, other calls on it by the thread that gave it the first of these are
// refused (kInvalidArgument): they were probably meant for the group. Other threads may call, and have groups of their
// own.
//
// Threads: a Group is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/communicator.h"
#include "tutti/export.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

class TUTTI_API Group {
 public:
  Group();
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Each checks its arguments at once; on an error the call is not in the group. The communicators outlive the group.
  // options.timeout counts; at most 65536 calls, and with what is under way fewer on one communicator.
  Status add(Communicator& communicator, const CollectiveCall& call, const CallOptions& options = {});
  // Also to this rank itself, when the same group holds the receive. Sends and receives of a group on one communicator
  // are all of host memory or all of device memory; the longest timeout is that of all of them.
  Status send(Communicator& communicator, const void* data, std::size_t count, DataType type, std::int32_t peer,
              const CallOptions& options = {});
  Status receive(Communicator& communicator, void* data, std::size_t count, DataType type, std::int32_t peer,
                 const CallOptions& options = {});

  // Starts everything and waits for all of it, but for what works on device memory, which goes on in its streams; the
  // first error, if there is one. The group is empty afterwards.
  Status run();
  // Starts everything; the Work ends when all of it has.
  Result<Work> start();

 private:
  std::unique_ptr<detail::GroupImpl> impl_;
};

// One send or receive in the background, beside whatever other threads call meanwhile; Work::wait() tells how it ended.
// Arguments and errors as of Communicator::send() and receive(); refused like these while a Group holds calls.
TUTTI_API Result<Work> start_send(Communicator& communicator, const void* data, std::size_t count, DataType type,
                                  std::int32_t peer, const CallOptions& options = {});
TUTTI_API Result<Work> start_receive(Communicator& communicator, void* data, std::size_t count, DataType type,
                                     std::int32_t peer, const CallOptions& options = {});

}  // namespace tutti
