// Operation: one submitted call, a collective or an exchange. The engine's queue and the caller's Work share it. It has
// no threads or locks: until it has started, the engine's mutex guards its fields. After that they belong to the
// driver, except for `done`.
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

struct Operation {
  // Of a collective. For an exchange only its tag is used, in messages.
  Call call;
  BoundPlan* plan = nullptr;  // null for an exchange
  // The collective uses mailboxes and needs no messages. `plan` is the plan that it replaces.
  bool by_mailbox = false;
  // A collective that needs no messages if all memory is registered.
  bool direct = false;
  std::vector<Transfer> transfers;  // of an exchange
  std::vector<OwnCopy> own;         // of an exchange
  std::unique_ptr<Exchange> exchange;
  bool probes = false;                              // an exchange that only checks for messages
  std::shared_ptr<StartCondition> start_condition;  // null if it may start at once
  // A GPU carries it out, and the engine never sees it. `start_condition` is a DeviceCall.
  bool on_device = false;
  // A segmented call (segments.h) consists of several operations, which follow each other in the queue.
  bool follows = false;  // a segment, but not the first one
  // In the first segment: the other segments, in order. Shared like this operation.
  std::vector<std::shared_ptr<Operation>> rest;
  std::int64_t timeout_ns = 0;
  bool started = false;
  std::uint64_t recorded = 0;    // serial number in the recording; 0 if it is not recorded
  std::int64_t deadline_ns = 0;  // set at the start, extended after progress
  // When it first seemed that no more data could arrive. 0 if it does not seem so.
  std::int64_t suspected_ns = 0;
  // Number of extensions of the deadline because this rank was not running. See Watchdog::extend_deadline().
  std::uint32_t extensions = 0;
  // It has progressed since the driver last looked at the clock. Only the driver uses it.
  bool progressed = false;
  Status result;  // valid if `done` is true
  std::atomic<bool> done = false;

  // A new operation for the same call. Only for an operation that was never submitted.
  std::shared_ptr<Operation> again() const {
    auto operation = std::make_shared<Operation>();  // shared like the operations in the queue
    operation->call = call;
    operation->plan = plan;
    operation->by_mailbox = by_mailbox;
    operation->direct = direct;
    operation->transfers = transfers;
    operation->own = own;
    operation->start_condition = start_condition;
    operation->follows = follows;
    operation->timeout_ns = timeout_ns;
    return operation;
  }
};

// An operation that has ended, if there is one, and its error.
struct EndedOperation {
  std::shared_ptr<Operation> operation;  // shared like the operations in the queue; null if none has ended
  std::optional<Error> error;
};

}  // namespace tutti
