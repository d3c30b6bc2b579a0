#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system_error.h"
#include "base/thread.h"
#include "plan/collective.h"

namespace tutti {
namespace {

constexpr std::int64_t kMaxSleepNs = 50'000'000;  // needed because a peer that has died rings no doorbell
constexpr std::uint32_t kMovesPerLook = 64;       // rounds with progress between two looks at the clock
constexpr std::uint32_t kRoundsPerClock = 64;     // pauses between two looks at the clock

// The scope of an error when a connection could not be opened: only the call fails, because descriptors may be free
// again later.
Error as_call_error(Error error) {
  if (error.code == ErrorCode::kSystem) error.scope = ErrorScope::kCall;
  return error;
}

}  // namespace

Engine::Engine(std::uint32_t rank, std::uint32_t ranks, Environment& environment, Connections& connections,
               Segmentation segmentation)
    : context_{.rank = rank,
               .ranks = ranks,
               .environment = environment,
               .transport = *environment.transport,
               .recorder = environment.recorder.get(),
               .connections = connections,
               .segmentation = segmentation},
      handle_(std::make_shared<EngineHandle>(*this)),
      state_(context_),
      tasks_(context_),
      receivers_(context_),
      staged_(context_),
      recorder_(context_, tasks_),
      failed_(context_, state_.failure, tasks_),
      watchdog_(context_, tasks_, staged_, failed_, recorder_) {}

Engine::~Engine() {
  handle_->close();
  {
    const std::scoped_lock lock(state_.mutex);
    ending_ = true;
    state_.failure.announce_again();
    if (!state_.idle()) state_.failure.abort_remaining();
    state_.role.notify_all();
  }
  if (progress_thread_.joinable()) progress_thread_.join();
  std::unique_lock lock(state_.mutex);
  state_.role.wait_until_unused(lock);
  while (!state_.idle()) run(lock, Until::kDone);
}

Status Engine::submit(const std::shared_ptr<Operation>& operation, Progress progress) {
  const std::scoped_lock lock(state_.mutex);
  TUTTI_ASSERT(!ending_);
  state_.failure.announce_again();
  if (state_.failure.broken()) return *state_.failure.broken();
  if (state_.queue.capacity() == 0) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("{} operations are under way already: wait for some of them first",
                             OperationQueue::kMaxOperations)};
  }
  if (progress == Progress::kInBackground && !progress_thread_.joinable()) {
    try {
      progress_thread_ = start_thread([this] { background(); });
    } catch (const std::system_error& error) {
      return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, describe_thread_start_error(error)};
    }
  }
  state_.queue.add(operation);
  if (state_.role.taken()) state_.role.wake_driver();  // there is new work
  if (progress == Progress::kByCaller) return {};
  state_.role.set_background_wanted(true);
  state_.role.notify_all();
  return {};
}

Status Engine::wait(Operation& operation) {
  if (!operation.done.load(std::memory_order_acquire)) {
    std::unique_lock lock(state_.mutex);
    drive(lock, operation);
  }
  return operation.result;
}

bool Engine::test(Operation& operation) {
  if (operation.done.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(state_.mutex, std::try_to_lock);
  if (!lock.owns_lock() || state_.role.taken() || state_.idle()) return operation.done.load(std::memory_order_acquire);
  drive_once(lock, Until::kOnePoll);
  return operation.done.load(std::memory_order_acquire);
}

void Engine::fail(const Error& error) noexcept {
  const std::scoped_lock lock(state_.mutex);
  if (state_.failure.broken()) return;
  state_.failure.set_broken(error);
  state_.failure.announce_abort();
  state_.queue.note_change();  // makes the driver check broken() again
}

void Engine::end_all() noexcept {
  std::unique_lock lock(state_.mutex);
  while (!state_.idle()) {
    if (state_.role.taken()) {
      state_.role.wait_for_change(lock);
    } else {
      drive_once(lock, Until::kDone);
    }
  }
}

Status Engine::finalize() {
  while (true) {
    std::shared_ptr<Operation> last;  // shared with the queue
    {
      std::unique_lock lock(state_.mutex);
      if (state_.role.unqueued()) {
        state_.role.wait_for_end_of_unqueued(lock);
        continue;
      }
      if (state_.idle()) {
        if (state_.failure.broken()) return *state_.failure.broken();
        state_.failure.set_broken({ErrorCode::kInvalidArgument, ErrorScope::kCommunicator, -1,
                                   "finalize() was called on this communicator: it takes no more calls"});
        context_.transport.announce_leave();  // there is no driver, because no work is in progress
        return {};
      }
      last = state_.queue.last();
    }
    static_cast<void>(wait(*last));
  }
}

std::size_t Engine::capacity() {
  const std::scoped_lock lock(state_.mutex);
  return state_.queue.capacity();
}

std::optional<Error> Engine::broken() {
  const std::scoped_lock lock(state_.mutex);
  return state_.failure.broken();
}

// Becomes the driver as soon as there is no other driver, and drives until the operation is done.
void Engine::drive(std::unique_lock<std::mutex>& lock, Operation& until_done) {
  const auto done = [&] { return until_done.done.load(std::memory_order_acquire); };
  if (state_.role.taken()) state_.role.wait_for_role(lock, [&] { return done() || !state_.role.taken(); });
  if (done()) return state_.role.notify_all();
  state_.role.take();
  while (!done()) run(lock, Until::kDone);
  state_.role.release();
}

// Becomes the driver for one run(). No other thread may drive.
void Engine::drive_once(std::unique_lock<std::mutex>& lock, Until until) noexcept {
  state_.role.take();
  run(lock, until);
  state_.role.release();
}

void Engine::background() {
  std::unique_lock lock(state_.mutex);
  while (!ending_) {
    if (state_.idle()) state_.role.set_background_wanted(false);
    if (state_.role.taken() || state_.role.wanted() || !state_.role.background_wanted()) {
      state_.role.wait_for_change(lock);
    } else {
      drive_once(lock, Until::kWanted);
    }
  }
}

// Drives the operations in progress, without the lock, until one of them has ended or `until` is reached. Never
// throws: an exception, such as std::bad_alloc, breaks the communicator and ends one operation. The other
// operations end as after any error of the communicator, one with each further run().
void Engine::run(std::unique_lock<std::mutex>& lock, Until until) noexcept {
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
  if (ended.operation->plan == nullptr && !ended.operation->probes) state_.queue.give_back_numbers(*ended.operation);
  state_.queue.remove(*ended.operation);
  ended.operation->done.store(true, std::memory_order_release);
  if (state_.role.wanted()) state_.role.notify_all();
}

// One turn of run(). Returns without the lock.
EndedOperation Engine::advance(std::unique_lock<std::mutex>& lock, Until until) {
  state_.queue.list_active(active_);
  std::optional<Error> broken = state_.failure.broken();
  // Read under the lock: operations that are submitted later are not in active_, so the driver must notice them.
  const std::uint32_t submitted = state_.queue.changes();
  lock.unlock();
  EndedOperation ended = broken ? break_off(*broken) : drive_active(until, submitted);
  if (ended.error) staged_.escalate_mismatch(*ended.operation, *ended.error);
  if (ended.operation != nullptr && ended.operation->probes && !ended.error) {
    const std::scoped_lock again(state_.mutex);
    if (ended.operation->exchange->is_stale()) {
      ended.operation->exchange->look_again();
      ended = {};
    }
  }
  return ended;
}

// Called in an exception handler, with the lock held. The state of the operations is unknown, so the communicator
// breaks.
EndedOperation Engine::end_by_exception() noexcept {
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

// Ends an operation that was waiting or in progress when the communicator broke, and notifies its peers.
EndedOperation Engine::break_off(const Error& broken) {
  const std::shared_ptr<Operation>& operation = active_.front();  // shared like the operations in the queue
  if (operation->started && operation->plan != nullptr) {
    context_.transport.leave_call(operation->call.tag, CallFailure{.code = broken.code, .culprit = broken.rank});
  }
  return {.operation = operation, .error = broken};
}

EndedOperation Engine::drive_active(Until until, std::uint32_t submitted) {
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
    if (state_.queue.changes() != submitted) break;  // there may be a new operation to poll
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

EndedOperation Engine::poll_active(bool& moved) {
  bool exchanges_wait = false;  // exchanges start in the order of their numbers
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
      if (auto error = start(*operation)) return {.operation = operation, .error = std::move(error)};
      if (auto error = check_receivers(*operation)) return {.operation = operation, .error = std::move(error)};
    }
    if (operation->probes && exchanges_wait) continue;  // earlier receives may not have started yet
    bool this_moved = false;
    if (auto error = poll(*operation, this_moved)) return {.operation = operation, .error = std::move(error)};
    if (this_moved) operation->progressed = moved = true;
    if (this_moved && ++moves_ % kMovesPerLook == 0) {  // a rank that waits for no other rank detects deaths here
      if (EndedOperation ended = watchdog_.check(active_); ended.operation != nullptr) return ended;
    }
    if (operation->plan == nullptr && operation->exchange->done())
      return {.operation = operation, .error = std::nullopt};
    if (operation->plan != nullptr && tasks_.running()->done())
      return {.operation = operation, .error = tasks_.find_disagreement(*operation)};
  }
  return {};
}

// Starts an operation, and opens its connections if they are not open. If this fails for a collective, the peers
// are notified.
std::optional<Error> Engine::start(Operation& operation) {
  operation.started = true;
  watchdog_.start(operation);
  recorder_.begin(operation);
  if (operation.plan != nullptr) {
    auto error = tasks_.start(operation);
    return error ? std::optional(as_call_error(*std::move(error))) : std::nullopt;
  }
  for (Transfer& transfer : operation.transfers) {
    if (Status opened = open(transfer, context_.connections); !opened.ok()) return as_call_error(opened.error());
  }
  operation.exchange = std::make_unique<Exchange>(
      std::move(operation.transfers), operation.own, context_.transport, state_.queue.numbers(),
      operation.probes ? Exchange::Purpose::kProbe : Exchange::Purpose::kTransfer);
  return std::nullopt;
}

// Returns an error if a receiver of an operation that has just started no longer takes part.
std::optional<Error> Engine::check_receivers(const Operation& operation) {
  if (!ReceiverLiveness::applies_to(operation)) return std::nullopt;
  auto diagnosis = receivers_.check(operation, watchdog_.last_clock_ns());
  if (!diagnosis) return std::nullopt;
  return operation.plan == nullptr ? std::move(diagnosis->error) : failed_.give_up(operation, *std::move(diagnosis));
}

std::optional<Error> Engine::poll(Operation& operation, bool& moved) {
  if (state_.failure.aborted()) return failed_.find_own_abort(operation);  // checked at every poll
  const FailureAnalyzer analyzer = context_.analyzer();
  if (operation.plan == nullptr) {
    moved = operation.exchange->progress();
    if (!operation.exchange->bad_message()) return std::nullopt;
    return analyzer.bad_transfer(*operation.exchange).error;
  }
  moved = tasks_.running()->progress();
  if (!tasks_.running()->bad_message()) return std::nullopt;
  if (auto error = failed_.find_own_abort(operation))
    return error;  // peers may have seen the abort before this rank did
  return failed_.give_up(operation, analyzer.bad_message(operation.call, *tasks_.running()->bad_message()));
}

EndedOperation Engine::pause(Idle& idle) {
  const std::uint32_t sleeps_before = idle.sleeps;
  context_.environment.waiter->pause(idle, context_.transport.doorbell(), kMaxSleepNs);
  if (idle.rounds % kRoundsPerClock != 0 && idle.sleeps == sleeps_before) return {};
  return watchdog_.check(active_);
}

// Carries out the consequences of `result` for the peers, for the memory of the call and for its stream. Never
// throws. If a step fails, the operation fails and the communicator breaks, because the peers may not have been
// notified.
void Engine::finish(Operation& operation, Status result) noexcept {
  if (!result.ok())
    runs_through([&] { context_.environment.log.write(LogLevel::kInfo, "{}", to_string(result.error())); });
  const ErrorScope scope = result.ok() ? ErrorScope::kCall : result.error().scope;
  try {
    if (result.ok()) {
      conclude(operation);
    } else {
      failed_.abandon(operation, scope, active_);
    }
  } catch (...) {
    const auto rank = static_cast<std::int32_t>(context_.rank);
    Error error = result.ok() ? error_of_exception(ErrorScope::kCommunicator, rank, "the end of a call")
                              : std::move(result).error();
    error.scope = std::max(error.scope, ErrorScope::kCommunicator);  // the next line makes the peers treat it as such
    result = std::move(error);
    state_.failure.announce_abort();
    runs_through([&] { failed_.abandon(operation, ErrorScope::kCommunicator, active_); });
  }
  staged_.report_end(operation, result);
  runs_through([&] { recorder_.end(operation, result); });
  operation.result = std::move(result);
}

void Engine::conclude(Operation& operation) {
  if (operation.plan == nullptr) return;
  if (tasks_.running() != nullptr && tasks_.running()->shows_output()) tasks_.running()->withdraw_output(false);
  tasks_.conclude(operation.call.tag, has_root(operation.plan->shape.collective.kind));
}

}  // namespace tutti
