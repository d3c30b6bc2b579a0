// Operation: one call, a collective or an exchange, or one segment of a long call. The engine's queue and the caller's
// Work share it. It has no threads or locks. The thread that makes the operation fills it in. From its submission to
// its start, its fields are changed only under the engine's mutex. After the start, and when it ends without having
// started, only the driver changes them. (If the callback of a stream cannot submit the operation, the callback or the
// thread that notices this sets `result` and `done`.) Meanwhile other threads may read only `done`, and fields that do
// not change any more, for example `start_condition`. When `done` is true, the caller may read `result`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/start_condition.h"
#include "executor/exchange.h"
#include "executor/plan_execution.h"

namespace tutti {

// Connects an operation with the rest of a larger call, which another communicator carries out. The engine's driver and
// callbacks of streams call its functions, so these must not wait for a thread that puts work into a stream.
class OperationGuard {
 public:
  virtual ~OperationGuard() = default;
  // Called before the operation starts, and from time to time while it runs. Returns an error if another part of the
  // call has failed. The operation then ends with an error that names this rank and contains the text of the returned
  // one, and the communicator is broken.
  virtual std::optional<Error> find_failure() = 0;
  // Called once for each failed operation, when it has ended and before its stream continues: by the driver or, if a
  // stream's callback could not submit the operation, by that callback. Not called for an operation that no thread
  // tries to submit, because its stream is lost or its communicator has failed before.
  virtual void failed(const Error& error) noexcept = 0;
};

struct Operation {
  // The arguments of a collective. For an exchange only `call.tag` is used, and only for the text of messages and for
  // recordings.
  Call call;
  BoundPlan* plan = nullptr;  // null for an exchange, and if `on_device` is true
  // The collective runs as an InlineCollective: its values travel in mailboxes, without messages. Then `plan` does
  // not run, but gives the same result.
  bool by_mailbox = false;
  // The collective runs as a SingleCopyCollective: ranks read and write each other's buffers, without messages. If some
  // buffer can be neither mapped nor attached, the task uses a fallback of those that single_copy.h describes; one of
  // them is to run `plan` instead, with messages.
  bool direct = false;
  // The sends and receives of an exchange; moved into `exchange` at the start.
  std::vector<Transfer> transfers;
  std::vector<OwnCopy> own;  // the copies of an exchange from this rank to itself
  // For an exchange that contains an all_to_all_v, gather_v or scatter_v: its number among these exchanges, from 1. The
  // same on all ranks, which make these calls in the same order. 0: any other operation.
  std::uint64_t variable_call = 0;
  // The transfers without bytes of an exchange that a GPU carries out. Only some ranks may have such an operation, so
  // it has no number as a v-variant.
  bool is_part_of_device_call = false;
  std::unique_ptr<Exchange> exchange;  // the exchange in progress; null before its start, and for a collective
  bool probes = false;  // an exchange that waits for the next message and does not receive it (next_sender())
  std::shared_ptr<StartCondition> start_condition;  // null if the operation may start as soon as it is its turn
  std::shared_ptr<OperationGuard> guard;            // the guard; null if there is none; shared by segments and replays
  // A GPU carries out the operation, so it is never submitted to the engine. `start_condition` is then a DeviceCall or,
  // if the host carries out a part of the call, an AcrossCall (communicator/devices/across_machines.cc).
  bool on_device = false;
  // A segmented call (segments.h) consists of several operations, which are submitted one after another. True for each
  // of them except the first.
  bool follows = false;
  // In the first segment: the operations of the other segments, in order. Empty in the other segments, and if the
  // call is not segmented.
  std::vector<std::shared_ptr<Operation>> rest;
  std::int64_t timeout_ns = 0;
  bool started = false;
  std::uint64_t recorded = 0;    // serial number in the recording; 0 if it is not recorded
  std::int64_t deadline_ns = 0;  // the deadline: a time of the clock; set at the start, and moved by Watchdog::check()
  // The time since which it seems, without a break, that the missing data cannot arrive any more. 0 if it does not seem
  // so at the moment. The time restarts if the deadline is extended because this process was stopped.
  std::int64_t suspected_ns = 0;
  // The time of the clock since which the operation has made no progress, for Watchdog::warn_if_late(). It restarts
  // after this process was stopped.
  std::int64_t waiting_since_ns = 0;
  bool warned = false;  // the operation was late once; Watchdog::warn_if_late() does not warn again
  // Number of times that the deadline was extended since the last progress because this process seemed to have been
  // stopped. See Watchdog::extend_deadline().
  std::uint32_t extensions = 0;
  // The operation has made progress since the last Watchdog::check(). Only the driver uses this field.
  bool progressed = false;
  // Valid if `done` is true. If there is a start_condition, its finished() and outcome() tell how the call has ended.
  // An operation that is carried out on GPUs or captured in a graph is never submitted itself: as soon as the call is
  // in its stream, `done` is true and `result` is a success.
  Status result;
  std::atomic<bool> done = false;

  // Returns a new, unsubmitted operation with the same call. Requires that this operation was never submitted. Each
  // replay of a captured graph submits such a copy.
  std::shared_ptr<Operation> again() const {
    auto operation = std::make_shared<Operation>();  // shared by the queue and the driver
    operation->call = call;
    operation->plan = plan;
    operation->by_mailbox = by_mailbox;
    operation->direct = direct;
    operation->transfers = transfers;
    operation->own = own;
    operation->start_condition = start_condition;
    operation->guard = guard;
    operation->follows = follows;
    operation->timeout_ns = timeout_ns;
    return operation;
  }
};

// Whether a transfer belongs to an all_to_all_v, gather_v or scatter_v.
inline bool is_part_of_variable_call(const Transfer& transfer) {
  return row_of(CollectiveKind{transfer.tag.kind}).variable == VariableForm::kExchange;
}

// The operation that has just ended or must end now, and its error. `error` is empty if the operation succeeded.
struct EndedOperation {
  std::shared_ptr<Operation> operation;  // null if no operation has ended
  std::optional<Error> error;
};

}  // namespace tutti
