#include "engine/progress_loop.h"

#include <algorithm>
#include <utility>

#include "base/exceptions.h"
#include "plan/collective.h"

namespace tutti {
namespace {

// Maximum length of one sleep. Limited because a peer that has died rings no doorbell.
constexpr std::int64_t kMaxSleepNs = 50'000'000;
constexpr std::uint32_t kMovesPerLook = 64;  // Watchdog::check() is called after this many polls with progress
// Number of pauses without a sleep between two calls of Watchdog::check(). A sleep is always followed by a call.
constexpr std::uint32_t kRoundsPerClock = 64;

// Narrows the scope of an error of opening a connection. If the code is kSystem, for example because the process
// has no free file descriptor, only the call fails, because a later call may succeed.
Error as_call_error(Error error) {
  if (error.code == ErrorCode::kSystem) error.scope = ErrorScope::kCall;
  return error;
}

}  // namespace

ProgressLoop::ProgressLoop(const EngineContext& context, EngineState& state)
    : context_(context),
      state_(state),
      tasks_(context),
      receivers_(context),
      staged_(context),
      recorder_(context, tasks_),
      failed_(context, state.failure, tasks_),
      watchdog_(context, tasks_, staged_, failed_, recorder_) {}

void ProgressLoop::drive(std::unique_lock<std::mutex>& lock, Operation& until_done) {
  const auto done = [&] { return until_done.done.load(std::memory_order_acquire); };
  if (state_.role.taken()) state_.role.wait_for_role(lock, [&] { return done() || !state_.role.taken(); });
  if (done()) return state_.role.notify_all();
  state_.role.take();
  while (!done()) run_once(lock, Until::kDone);
  state_.role.release();
}

void ProgressLoop::run(std::unique_lock<std::mutex>& lock, Until until) noexcept {
  state_.role.take();
  run_once(lock, until);
  state_.role.release();
}

// Drives the operations in progress until one of them has ended, the queue has changed, or `until` is reached.
// Called with the lock held, and returns with it; unlocks it meanwhile. Never throws: an exception, such as
// std::bad_alloc, breaks the communicator and ends one operation. As after any error that breaks the communicator,
// each further call of this function then ends one of the remaining operations.
void ProgressLoop::run_once(std::unique_lock<std::mutex>& lock, Until until) noexcept {
  EndedOperation ended;
  try {
    ended = advance(lock, until);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    ended = end_by_exception();
    lock.unlock();
  }
  if (ended.operation != nullptr) finish(*ended.operation, ended.error ? Status(*std::move(ended.error)) : Status());
  lock.lock();
  if (ended.operation == nullptr) return;
  const Status& result = ended.operation->result;
  if (!result.ok() && result.error().scope >= ErrorScope::kConnection) state_.failure.set_broken(result.error());
  // In a broken communicator no transfer starts any more, so its numbers do not matter.
  if (!state_.failure.broken() && ended.operation->plan == nullptr && !ended.operation->probes) {
    state_.queue.give_back_numbers(*ended.operation);
  }
  state_.queue.remove(*ended.operation);
  ended.operation->done.store(true, std::memory_order_release);
  if (state_.role.wanted()) state_.role.notify_all();
}

// The part of run_once() that may throw: polls until the run ends. Called with the lock held, returns without it.
EndedOperation ProgressLoop::advance(std::unique_lock<std::mutex>& lock, Until until) {
  state_.queue.list_active(active_);
  std::optional<Error> broken = state_.failure.broken();
  // Read while the lock is still held. An operation that is submitted after this point is not in active_. It
  // changes the number, so the driver notices it.
  const std::uint32_t changes = state_.queue.changes();
  lock.unlock();
  EndedOperation ended = broken ? break_off(*broken) : poll_until(until, changes);
  if (ended.error) {
    staged_.escalate_mismatch(*ended.operation, *ended.error);
    if (ended.operation->exchange != nullptr) {
      FailureAnalyzer::escalate_half_moved(*ended.operation->exchange, *ended.error);
    }
  }
  if (ended.operation != nullptr && ended.operation->probes && !ended.error) {
    const std::scoped_lock again(state_.mutex);
    if (ended.operation->exchange->is_stale()) {
      ended.operation->exchange->look_again();
      ended = {};
    }
  }
  return ended;
}

// Called in an exception handler, with the lock held. Breaks the communicator, because the state of the operations
// is unknown, and returns the first operation with the error of the exception.
EndedOperation ProgressLoop::end_by_exception() noexcept {
  const auto rank = static_cast<std::int32_t>(context_.rank);
  Error error = error_of_exception(ErrorScope::kCommunicator, rank, "an internal failure of this rank");
  state_.failure.set_broken(error);
  EndedOperation ended{.operation = state_.queue.first(), .error = std::move(error)};
  if (ended.operation != nullptr && ended.operation->plan != nullptr && ended.operation->started) {
    const CallFailure failure{.code = ErrorCode::kSystem, .culprit = rank};
    runs_through([&] { context_.transport.leave_call(ended.operation->call.tag, failure); });
  }
  state_.failure.announce_abort();
  return ended;
}

// Ends the first of the active operations, because the communicator is broken. If that is a collective that has
// started, notifies the peers.
EndedOperation ProgressLoop::break_off(const Error& broken) {
  // an element of active_, which shares the operations with the queue
  const std::shared_ptr<Operation>& operation = active_.front();
  if (operation->started && operation->plan != nullptr) {
    context_.transport.leave_call(operation->call.tag, CallFailure{.code = broken.code, .culprit = broken.rank});
  }
  return {.operation = operation, .error = broken};
}

EndedOperation ProgressLoop::poll_until(Until until, std::uint32_t changes) {
  Idle idle;
  EndedOperation ended;
  while (true) {
    bool moved = false;
    ended = poll_active(moved);
    if (ended.operation != nullptr) break;
    if (until == Until::kOnePoll) {
      if (!moved) ended = watchdog_.check(active_);
      break;
    }
    if (until == Until::kWanted && state_.role.wanted()) break;
    // an operation was added, or fail() was called, so list the operations anew
    if (state_.queue.changes() != changes) break;
    if (moved) {
      context_.environment.waiter->reset(idle, context_.transport.doorbell());
      continue;
    }
    ended = pause(idle);
    if (ended.operation != nullptr) break;
  }
  context_.environment.waiter->reset(idle, context_.transport.doorbell());
  return ended;
}

EndedOperation ProgressLoop::poll_active(bool& moved) {
  // true after an exchange that cannot start yet: later exchanges must not overtake it, because transfers begin in
  // the order of their numbers
  bool exchanges_wait = false;
  for (const std::shared_ptr<Operation>& operation : active_) {
    if (!operation->started) {
      if (staged_.call_has_failed(*operation)) return {.operation = operation, .error = staged_.drop(*operation)};
      const bool exchange = operation->plan == nullptr;
      if (!StagedOperations::may_start(*operation) || (exchange && exchanges_wait)) {
        exchanges_wait |= exchange;
        if (state_.failure.aborted()) {
          return {.operation = operation, .error = FailedOperations::aborted_error(operation->call)};
        }
        continue;
      }
      if (auto error = staged_.ask_guard(*operation)) return {.operation = operation, .error = std::move(error)};
      if (auto error = start(*operation)) return {.operation = operation, .error = std::move(error)};
    }
    if (operation->probes && exchanges_wait) continue;  // a receive that has not started may take the message
    bool this_moved = false;
    if (auto error = poll(*operation, this_moved)) return {.operation = operation, .error = std::move(error)};
    if (this_moved) operation->progressed = moved = true;
    // A rank that makes progress in every round never calls pause(), so it must check deadlines and look for dead peers
    // here.
    if (this_moved && ++moves_ % kMovesPerLook == 0) {
      if (EndedOperation ended = watchdog_.check(active_); ended.operation != nullptr) return ended;
    }
    if (operation->plan == nullptr && operation->exchange->done())
      return {.operation = operation, .error = std::nullopt};
    if (operation->plan != nullptr && tasks_.running()->done())
      return {.operation = operation, .error = tasks_.find_disagreement(*operation)};
  }
  return {};
}

// Starts an operation: opens its connections if they are not open, and checks that its receivers are alive, if
// ReceiverLiveness::applies_to() the operation. If one of these steps fails, returns the error, and notifies the peers
// if the operation is a collective.
std::optional<Error> ProgressLoop::start(Operation& operation) {
  operation.started = true;
  watchdog_.start(operation);
  recorder_.begin(operation);
  if (operation.plan != nullptr) {
    if (auto error = tasks_.start(operation)) return as_call_error(*std::move(error));
  } else {
    for (Transfer& transfer : operation.transfers) {
      if (Status opened = open(transfer, context_.connections); !opened.ok()) return as_call_error(opened.error());
    }
    operation.exchange = std::make_unique<Exchange>(
        std::move(operation.transfers), operation.own, context_.transport, state_.queue.numbers(),
        operation.probes ? Exchange::Purpose::kProbe : Exchange::Purpose::kTransfer);
  }
  if (!ReceiverLiveness::applies_to(operation)) return std::nullopt;
  auto lost = receivers_.check(operation, watchdog_.last_clock_ns());
  if (!lost) return std::nullopt;
  return operation.plan == nullptr ? std::move(lost->error) : failed_.give_up(operation, *std::move(lost));
}

std::optional<Error> ProgressLoop::poll(Operation& operation, bool& moved) {
  // an atomic load, so cheap enough for every poll
  if (state_.failure.aborted()) return failed_.find_own_abort(operation);
  const FailureAnalyzer analyzer = context_.analyzer();
  if (operation.plan == nullptr) {
    moved = operation.exchange->progress();
    if (!operation.exchange->bad_message()) return std::nullopt;
    return analyzer.bad_transfer(*operation.exchange).error;
  }
  moved = tasks_.running()->progress();
  if (!tasks_.running()->bad_message()) return std::nullopt;
  if (auto error = failed_.find_own_abort(operation))
    // the bad message can be a consequence of this rank's own abort(), which peers may notice before this thread
    // does
    return error;
  return failed_.give_up(operation, analyzer.bad_message(operation.call, *tasks_.running()->bad_message()));
}

EndedOperation ProgressLoop::pause(Idle& idle) {
  const std::uint32_t sleeps_before = idle.sleeps;
  context_.environment.waiter->pause(idle, context_.transport.doorbell(), kMaxSleepNs);
  if (idle.rounds % kRoundsPerClock != 0 && idle.sleeps == sleeps_before) return {};
  return watchdog_.check(active_);
}

void ProgressLoop::record_retransmissions() noexcept {
  runs_through([this] { recorder_.record_retransmissions(); });
}

void ProgressLoop::finish(Operation& operation, Status result) noexcept {
  if (!result.ok())
    runs_through([&] { context_.environment.log.write(LogLevel::kInfo, "{}", to_string(result.error())); });
  const ErrorScope scope = result.ok() ? ErrorScope::kCall : result.error().scope;
  try {
    if (!result.ok()) {
      failed_.abandon(operation, scope, active_);
    } else if (operation.plan != nullptr) {
      if (tasks_.running() != nullptr && tasks_.running()->shows_output()) tasks_.running()->withdraw_output(false);
      tasks_.conclude(operation.call.tag, needs_all_ranks(operation.plan->shape.collective.kind));
    }
  } catch (...) {
    const auto rank = static_cast<std::int32_t>(context_.rank);
    Error error = result.ok() ? error_of_exception(ErrorScope::kCommunicator, rank, "the end of a call")
                              : std::move(result).error();
    // because announce_abort(), below, ends the communicator for the peers
    error.scope = std::max(error.scope, ErrorScope::kCommunicator);
    result = std::move(error);
    state_.failure.announce_abort();
    runs_through([&] { failed_.abandon(operation, ErrorScope::kCommunicator, active_); });
  }
  staged_.report_end(operation, result);
  runs_through([&] { recorder_.end(operation, result); });
  operation.result = std::move(result);
}

}  // namespace tutti
