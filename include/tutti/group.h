// Group: collectives, sends and receives that start together, on one communicator or on several.
//
// A group completes on every rank, in any order of its calls and on any number of communicators, if the ranks' groups
// match: every send has its receive, and on each communicator all ranks add the same collectives. (The collectives of
// one communicator are sorted by collective, root, count, type, operation and algorithm, and then by a checksum of the
// block lengths, the user plan and the user reduction. Only if all of these are equal does the order of the calls
// matter.) Between two ranks, however, the sends and receives of a group match in the order of the calls, and so do
// all_to_all_v, gather_v and scatter_v, which run as sends and receives. Tutti chooses in which order the calls of one
// group run, and several may run at the same time, so no call may use the result of another call of its group.
//
// Nothing is sent before run() or start(). A Group that is destroyed earlier discards its calls and logs a warning.
// While a group holds calls on a communicator, the thread that added the first of these calls cannot call collectives,
// sends or receives on that communicator directly, and cannot add calls on it to another Group: they are refused
// (kInvalidArgument), because they were probably meant for the first group. Other threads may use the communicator, and
// may have groups of their own.
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

// A set of calls that run() or start() starts together. The top of this file has the rules.
class TUTTI_API Group {
 public:
  Group();
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Adds a collective. Its arguments are checked at once; after an error the call is not in the group. The
  // communicators must outlive the group. `options` means the same as for Communicator::run(), but all_to_all_v,
  // gather_v and scatter_v follow the rules for memory, stream and timeout of sends and receives (below). A group holds
  // at most 65536 calls. run() and start() also refuse (kInvalidArgument) a group for which a communicator's queue of
  // operations has not enough room at that moment. Each collective needs one place (a call in segments one for each
  // segment, see Agreement), and all sends and receives together need one place, which is required in any case.
  Status add(Communicator& communicator, const CollectiveCall& call, const CallOptions& options = {});
  // Add a send or a receive. Its own arguments are checked at once. `peer` may be this rank, if the group also holds
  // the matching receive or send. The sends and receives of a group on one communicator use either only host memory or
  // only device memory, and one stream. run() and start() check these rules (kInvalidArgument), except the one stream,
  // which is checked at once. The longest of the timeouts applies to all of them; a call that passes 0 has the
  // communicator's timeout.
  Status send(Communicator& communicator, const void* data, std::size_t count, DataType type, std::int32_t peer,
              const CallOptions& options = {});
  Status receive(Communicator& communicator, void* data, std::size_t count, DataType type, std::int32_t peer,
                 const CallOptions& options = {});

  // Starts all calls and waits for those on host memory; calls on device memory continue in their streams, but see
  // Communicator::run() for ranks that share a process and a GPU. Returns the first error, if any. The group is empty
  // afterwards.
  Status run();
  // Starts all calls and returns at once, except as described at Communicator::run() for ranks that share a process and
  // a GPU. But if a call is refused, waits until those that have started have ended, and returns the error. The Work is
  // complete when all of these calls have ended. The group is empty when start() has returned.
  Result<Work> start();

 private:
  std::unique_ptr<detail::GroupImpl> impl_;
};

// Start one send or receive in the background. While the transfer waits for the peer, it does not delay calls of other
// threads; if the GPUs carry it out, it delays later calls of this rank on device memory (docs/communicator.md).
// Work::wait() returns the result of the transfer. Arguments and errors are those of Communicator::send() and
// receive(). Like send() and receive(), start_send() and start_receive() are refused while a Group of this thread holds
// calls on the communicator.
TUTTI_API Result<Work> start_send(Communicator& communicator, const void* data, std::size_t count, DataType type,
                                  std::int32_t peer, const CallOptions& options = {});
TUTTI_API Result<Work> start_receive(Communicator& communicator, void* data, std::size_t count, DataType type,
                                     std::int32_t peer, const CallOptions& options = {});

}  // namespace tutti
