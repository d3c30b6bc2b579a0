#include "engine/short_calls.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/exceptions.h"
#include "engine/operation_recorder.h"
#include "plan/collective.h"

namespace tutti {
namespace {

// Maximum number of polls without progress while the lock is held. They take about 20 us.
constexpr std::uint32_t kShortPolls = 400;
constexpr std::uint32_t kEagerPolls = 30;  // this many of these polls come first, without relax() between them
// Maximum number of pauses after these polls, before the call becomes a queued operation.
constexpr std::uint32_t kShortPauses = 50;

}  // namespace

// Starts the collective and polls it until it is done, or until kShortPolls polls (or fewer, see Waiter::spins()) have
// made no progress, which takes about 20 us. A template, so that the calls of the task's functions are not virtual,
// because each virtual call would add a measurable part to a call of less than a microsecond.
template <class TaskType>
void ShortCalls::start(TaskType& task, const Call& call, std::uint64_t& waited_until) {
  context_.transport.enter_call(call.tag, task.offered(call));
  task.start(call);
  const std::uint32_t polls = std::min(context_.environment.waiter->spins(), kShortPolls);
  for (std::uint32_t vain = 0; vain < polls && !task.done();) {
    if (vain >= kEagerPolls) {
      // The recorder needs the time at which the wait ended. Read the clock during the wait, which costs nothing,
      // because reading it after the wait would delay the end of the call.
      if (context_.recorder != nullptr) waited_until = context_.recorder->now();
      relax();
    }
    if (!task.progress()) ++vain;
  }
}

std::optional<Status> ShortCalls::run(Path path, BoundPlan& plan, Call& numbered, std::int64_t timeout_ns,
                                      std::unique_lock<std::mutex>& order) {
  const bool direct = path == Path::kSingleCopy;
  std::unique_lock lock(state_.mutex);
  if (!tasks_.has_mailboxes() || state_.failure.broken() || state_.role.taken() || !state_.idle()) return std::nullopt;
  if (direct && !tasks_.may_start_single_copy(plan)) return std::nullopt;
  if (!direct && loop_.receivers().check_is_due(plan.shape.collective)) return std::nullopt;
  // Created before the call starts, because from then on it must be possible at any time to turn the call into a
  // queued operation.
  if (spare_ == nullptr) spare_ = std::make_shared<Operation>();
  numbered.tag.sequence = state_.queue.take_sequence();
  order.unlock();
  Operation& operation = *spare_;
  operation.plan = &plan;
  operation.by_mailbox = !direct;
  operation.direct = direct;
  operation.timeout_ns = timeout_ns;
  operation.started = true;
  // The time at which the wait for peers ended, in ticks of the recorder. 0 if the call ended within its first
  // polls, or if nothing is recorded.
  std::uint64_t waited_until = 0;
  try {
    if (run_past_queue(lock, operation, numbered, waited_until)) return Status();
    operation.call = std::move(numbered);
    state_.queue.add_short_call(spare_);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    return end_by_exception(lock, operation, numbered);
  }
  // Shared with the queue, which drops its reference when the operation has ended.
  const std::shared_ptr<Operation> queued = std::exchange(spare_, nullptr);
  loop_.drive(lock, *queued);
  return queued->result;
}

// Runs the first two phases of run(). Called with the lock held, and returns with it. Returns true if the call has
// completed. Returns false if it must continue as a queued operation, because it is not done, or because a mailbox
// shows other arguments.
bool ShortCalls::run_past_queue(std::unique_lock<std::mutex>& lock, Operation& operation, const Call& call,
                                std::uint64_t& waited_until) {
  const auto path = operation.direct ? recording::CallPath::kDirect : recording::CallPath::kMailboxes;
  operation.recorded = 0;
  if (context_.recorder != nullptr) {
    operation.recorded = context_.recorder->begin(call.tag, path);
    context_.recorder->set_label(operation.recorded, call.label);
    const std::uint64_t bytes = recorded_bytes(call, operation.plan->shape.collective, context_.rank);
    context_.recorder->count(call.tag.kind, bytes, true);
  }
  if (operation.direct) {
    start(tasks_.select_single_copy(), call, waited_until);
  } else {
    start(tasks_.select_inline(), call, waited_until);
  }
  if (!tasks_.running()->done()) {
    state_.role.take_unqueued();
    const std::uint32_t changes = state_.queue.changes();
    lock.unlock();
    std::exception_ptr thrown;
    try {
      poll_with_pauses(changes);
    } catch (...) {
      thrown = std::current_exception();
    }
    if (context_.recorder != nullptr) waited_until = context_.recorder->now();
    lock.lock();
    state_.role.release_after_short_call();
    if (thrown) std::rethrow_exception(thrown);
  }
  const bool all_needed = needs_all_ranks(operation.plan->shape.collective.kind);
  if (tasks_.running()->done() && (all_needed || !tasks_.mailboxes_disagree())) {
    tasks_.conclude(call.tag, all_needed);
    if (context_.recorder != nullptr) context_.recorder->end(operation.recorded, waited_until);
    return true;
  }
  loop_.watchdog().start(operation);
  return false;
}

// Called in a catch block, with the lock held. Breaks the communicator. The operation was never queued, so no
// driver will end it, and this function does.
Status ShortCalls::end_by_exception(std::unique_lock<std::mutex>& lock, Operation& operation, Call& call) noexcept {
  const auto rank = static_cast<std::int32_t>(context_.rank);
  Error error = error_of_exception(ErrorScope::kCommunicator, rank, "an internal failure of this rank");
  state_.failure.set_broken(error);
  if (operation.call.tag.sequence == 0) operation.call = std::move(call);
  state_.role.take();
  lock.unlock();
  const CallFailure failure{.code = ErrorCode::kSystem, .culprit = rank};
  runs_through([&] { context_.transport.leave_call(operation.call.tag, failure); });
  state_.failure.announce_abort();
  loop_.finish(operation, std::move(error));
  lock.lock();
  state_.role.release();
  return std::exchange(operation.result, Status());
}

// Polls the running collective, and pauses between the polls as the Waiter determines, without sleeping. Ends when
// the collective is done, after kShortPauses pauses, when the Waiter wants to sleep, after an abort(), or when an
// operation was submitted or Engine::fail() was called (the queue's number of changes differs from `changes`). Only the
// driver calls it.
void ShortCalls::poll_with_pauses(std::uint32_t changes) {
  Idle idle;
  for (std::uint32_t round = 0; round < kShortPauses && !idle.armed; ++round) {
    context_.environment.waiter->pause(idle, context_.transport.doorbell(), 0);
    while (tasks_.running()->progress() && !tasks_.running()->done())
      context_.environment.waiter->reset(idle, context_.transport.doorbell());
    if (tasks_.running()->done() || state_.failure.aborted()) break;
    if (state_.queue.changes() != changes) break;
  }
  if (tasks_.running()->done()) return context_.environment.waiter->reset(idle, context_.transport.doorbell());
  // The wait goes on in ProgressLoop, so its length is not known yet. Therefore disarm the doorbell without
  // reset(), which would report the end of the wait to the Waiter. But long yields are reported, because the Waiter
  // does not yield as much after them.
  if (idle.long_yields > 0) return context_.environment.waiter->reset(idle, context_.transport.doorbell());
  if (idle.armed) context_.transport.doorbell().disarm();
}

}  // namespace tutti
