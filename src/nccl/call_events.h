// The events of calls that a profiler plugin receives, and the order in which they come. The plugin gets them in the
// order of NCCL:
//
//   GroupApi start (first call of a group; depth 1 for a call outside of groups), state kStarted
//     CollApi or P2pApi start and stop, for each call
//   state kEnding (ncclGroupEnd(), or the call itself outside of groups)
//     Group start (at the first call of each communicator), Coll or P2p start, for each call
//     the calls run
//     Coll or P2p stop, for each call in reverse order; Group stop, for each communicator
//   GroupApi stop
//
// The event of a blocking call on host memory ends when the call has ended. That of a call on device memory, or on a
// nonblocking communicator, ends when the call has been enqueued, as in NCCL. In a group all events end together, as
// soon as every call of the group has ended or has been enqueued.
// Without a profiler, or if its mask is 0, the functions do nothing. An object is used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nccl/comm.h"

namespace tutti::nccl {

struct GroupCall;

// The events of one group, or of one call outside of groups. It lasts until the calls have run or were discarded; then
// its destructor stops the GroupApi event.
class GroupEvents {
 public:
  // `first`: the communicator of the group's first call. The mask of this moment counts for the whole group.
  GroupEvents(CommPtr first, std::uint32_t mask, bool is_captured, int depth);
  ~GroupEvents();
  GroupEvents(const GroupEvents&) = delete;
  GroupEvents& operator=(const GroupEvents&) = delete;

  void add(GroupCall& call, bool is_captured) const;  // reports the call's function, and stores its event in the call
  void end() const;                                   // the group begins to run
  std::uint32_t mask() const { return mask_; }

 private:
  const CommPtr comm_;
  const std::uint32_t mask_;
  void* const event_;  // GroupApi; may be null
};

// Reports a call that is added to the group whose events are `events`, and creates these at the first call
// for which a profiler asks for events. `open_groups`: how many calls of ncclGroupStart() are open.
void report_call(std::unique_ptr<GroupEvents>& events, GroupCall& call, int open_groups);

// The events of calls that run: starts them in the constructor, and stops them in the destructor. `events`: those of
// their group; null: nothing is reported.
class RunEvents {
 public:
  RunEvents(const GroupEvents* events, std::span<const GroupCall> calls);
  ~RunEvents();
  RunEvents(const RunEvents&) = delete;
  RunEvents& operator=(const RunEvents&) = delete;

 private:
  struct Started {
    const Profiler* profiler;
    void* event;
  };
  void start_calls(const GroupEvents& events, std::span<const GroupCall> calls);
  // The Group event of the communicator; started at its first call.
  void* group_of(const Comm& comm);

  std::vector<std::pair<const Comm*, void*>> groups_;
  std::vector<Started> started_;  // stopped in reverse order
};

}  // namespace tutti::nccl
