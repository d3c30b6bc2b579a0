#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
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
constexpr std::size_t kMaxQueued = 65536;         // maximum number of operations in progress on one communicator
constexpr std::uint32_t kMovesPerLook = 64;       // rounds with progress between two looks at the clock
constexpr std::uint32_t kRoundsPerClock = 64;     // pauses between two looks at the clock

// Earlier than any time that a clock returns.
constexpr std::int64_t kNeverNs = std::numeric_limits<std::int64_t>::min() / 2;

Error aborted_error(const Call& call) {
  return {ErrorCode::kAborted, ErrorScope::kCommunicator, -1, describe(call.tag) + ": abort() was called on this rank"};
}

// The scope of an error when a connection could not be opened: only the call fails, because descriptors may be free
// again later.
Error as_call_error(Error error) {
  if (error.code == ErrorCode::kSystem) error.scope = ErrorScope::kCall;
  return error;
}

}  // namespace

Engine::Engine(std::uint32_t rank, std::uint32_t ranks, Environment& environment, Connections& connections,
               Segmentation segmentation)
    : rank_(rank),
      ranks_(ranks),
      environment_(environment),
      recorder_(environment.recorder.get()),
      connections_(connections),
      segmentation_(segmentation),
      handle_(std::make_shared<EngineHandle>(*this)),
      numbers_(ranks),
      seen_live_ns_(ranks, kNeverNs),
      all_seen_ns_(kNeverNs) {
  if (environment.transport->mailboxes() == nullptr) return;
  marks_ = std::make_unique<MailboxBoard>(rank, *environment.transport);
  mailboxes_ = std::make_unique<InlineCollective>(*marks_);
  single_copy_ = std::make_unique<SingleCopyCollective>(*marks_, *environment.transport, environment.cores);
}

Engine::~Engine() {
  handle_->close();
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    if (abort_unannounced_.load(std::memory_order_relaxed)) announce_abort();
    if (!nothing_to_do()) {
      aborted_.store(true, std::memory_order_relaxed);
      announce_abort();
    }
    changed_.notify_all();
  }
  if (progress_thread_.joinable()) progress_thread_.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !driven_ && waiting_drivers_.load() == 0; });
  while (!nothing_to_do()) run(lock, Until::kDone);
}

Status Engine::submit(const std::shared_ptr<Operation>& operation, Progress progress) {
  const std::scoped_lock lock(mutex_);
  TUTTI_ASSERT(!ending_);
  if (abort_unannounced_.load(std::memory_order_relaxed)) announce_abort();
  if (broken_) return *broken_;
  if (queue_.size() + exchanges_.size() >= kMaxQueued) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("{} operations are under way already: wait for some of them first", kMaxQueued)};
  }
  if (progress == Progress::kInBackground && !progress_thread_.joinable()) {
    try {
      progress_thread_ = start_thread([this] { background(); });
    } catch (const std::system_error& error) {
      return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, describe_thread_start_error(error)};
    }
  }
  // Sequence numbers are assigned after the operation is queued, because queueing may throw.
  if (operation->plan != nullptr) {
    queue_.push_back(operation);
    operation->call.tag.sequence = ++last_sequence_;
  } else {
    exchanges_.push_back(operation);
    for (Transfer& transfer : operation->transfers) {
      transfer.tag.sequence = operation->probes ? numbers_.upcoming(transfer.peer, transfer.direction)
                                                : numbers_.next(transfer.peer, transfer.direction);
    }
    if (operation->probes) ++probes_;
  }
  submitted_.fetch_add(1, std::memory_order_release);
  if (driven_) environment_.transport->doorbell().ring();  // the driver may be asleep, and there is new work
  if (progress == Progress::kByCaller) return {};
  background_wanted_ = true;
  changed_.notify_all();
  return {};
}

Status Engine::wait(Operation& operation) {
  if (!operation.done.load(std::memory_order_acquire)) {
    std::unique_lock lock(mutex_);
    drive(lock, operation);
  }
  return operation.result;
}

bool Engine::test(Operation& operation) {
  if (operation.done.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || driven_ || nothing_to_do()) return operation.done.load(std::memory_order_acquire);
  driven_ = true;
  run(lock, Until::kOnePoll);
  driven_ = false;
  changed_.notify_all();
  return operation.done.load(std::memory_order_acquire);
}

void Engine::abort() noexcept {
  aborted_.store(true, std::memory_order_seq_cst);
  if (recorder_ != nullptr) runs_through([&] { recorder_->aborted(); });
  announce_abort();
  const std::scoped_lock lock(mutex_);
  if (broken_) return;
  // Short enough to need no allocation.
  broken_ = Error{ErrorCode::kAborted, ErrorScope::kCommunicator, -1, "aborted"};
  runs_through([&] { broken_->message = "abort() was called on this communicator"; });
}

void Engine::fail(const Error& error) noexcept {
  const std::scoped_lock lock(mutex_);
  if (broken_) return;
  broken_ = copy_of(error);
  announce_abort();
  submitted_.fetch_add(1, std::memory_order_release);  // makes the driver check broken_ again
}

// Notifies the peers and wakes the driver. The transport may be unable to notify the peers if it has no memory.
// Then the next call tries again.
void Engine::announce_abort() noexcept {
  const bool announced = runs_through([&] { environment_.transport->announce_abort(); });
  abort_unannounced_.store(!announced, std::memory_order_relaxed);
  runs_through([&] { environment_.transport->doorbell().ring(); });
}

void Engine::end_all() noexcept {
  std::unique_lock lock(mutex_);
  while (!nothing_to_do()) {
    if (driven_) {
      changed_.wait(lock);
      continue;
    }
    driven_ = true;
    run(lock, Until::kDone);
    driven_ = false;
    changed_.notify_all();
  }
}

Status Engine::finalize() {
  while (true) {
    std::shared_ptr<Operation> last;  // shared with the queue
    {
      std::unique_lock lock(mutex_);
      if (drives_unqueued_) {
        waiting_drivers_.fetch_add(1);
        changed_.wait(lock, [this] { return !drives_unqueued_; });
        waiting_drivers_.fetch_sub(1);
        changed_.notify_all();  // wake threads that did not drive because of waiting_drivers_
        continue;
      }
      if (nothing_to_do()) {
        if (broken_) return *broken_;
        broken_ = Error{ErrorCode::kInvalidArgument, ErrorScope::kCommunicator, -1,
                        "finalize() was called on this communicator: it takes no more calls"};
        environment_.transport->announce_leave();  // there is no driver, because no work is in progress
        return {};
      }
      last = queue_.empty() ? exchanges_.back() : queue_.back();
    }
    static_cast<void>(wait(*last));
  }
}

std::size_t Engine::capacity() {
  const std::scoped_lock lock(mutex_);
  return kMaxQueued - std::min(kMaxQueued, queue_.size() + exchanges_.size());
}

std::optional<Error> Engine::broken() {
  const std::scoped_lock lock(mutex_);
  return broken_;
}

// Becomes the driver as soon as there is no other driver, and drives until the operation is done.
void Engine::drive(std::unique_lock<std::mutex>& lock, Operation& until_done) {
  const auto done = [&] { return until_done.done.load(std::memory_order_acquire); };
  if (driven_) {
    waiting_drivers_.fetch_add(1);
    environment_.transport->doorbell().ring();  // the driver may be asleep
    changed_.wait(lock, [&] { return done() || !driven_; });
    waiting_drivers_.fetch_sub(1);
  }
  if (done()) {
    changed_.notify_all();  // wake threads that did not drive because of waiting_drivers_
    return;
  }
  driven_ = true;
  while (!done()) run(lock, Until::kDone);
  driven_ = false;
  changed_.notify_all();
}

void Engine::background() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const bool mine = !driven_ && waiting_drivers_.load() == 0 && background_wanted_ && !nothing_to_do();
    if (!mine) {
      if (nothing_to_do()) background_wanted_ = false;
      changed_.wait(lock);
      continue;
    }
    driven_ = true;
    run(lock, Until::kWanted);
    driven_ = false;
    changed_.notify_all();
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
  if (!result.ok() && result.error().scope >= ErrorScope::kConnection && !broken_) broken_ = copy_of(result.error());
  if (ended.operation->plan == nullptr && !ended.operation->probes) give_back_numbers(*ended.operation);
  remove(*ended.operation);
  ended.operation->done.store(true, std::memory_order_release);
  if (waiting_drivers_.load() > 0) changed_.notify_all();
}

// One turn of run(). Returns without the lock.
Engine::EndedOperation Engine::advance(std::unique_lock<std::mutex>& lock, Until until) {
  active_.clear();
  if (!queue_.empty()) active_.push_back(queue_.front());
  const auto probes = [](const std::shared_ptr<Operation>& operation) { return operation->probes; };
  std::remove_copy_if(exchanges_.begin(), exchanges_.end(), std::back_inserter(active_), probes);
  if (probes_ > 0) renumber_probes();
  std::optional<Error> broken = broken_;
  // Read under the lock: operations that are submitted later are not in active_, so the driver must notice them.
  const std::uint32_t submitted = submitted_.load(std::memory_order_relaxed);
  lock.unlock();
  EndedOperation ended = broken ? break_off(*broken) : drive_active(until, submitted);
  if (ended.error) escalate_mismatch(*ended.operation, *ended.error);
  if (ended.operation != nullptr && ended.operation->probes && !ended.error) {
    const std::scoped_lock again(mutex_);
    if (ended.operation->exchange->is_stale()) {
      ended.operation->exchange->look_again();
      ended = {};
    }
  }
  return ended;
}

// Called in an exception handler, with the lock held. The state of the operations is unknown, so the communicator
// breaks.
Engine::EndedOperation Engine::end_by_exception() noexcept {
  const auto rank = static_cast<std::int32_t>(rank_);
  Error error = error_of_exception(ErrorScope::kCommunicator, rank, "an internal failure of this rank");
  if (!broken_) broken_ = copy_of(error);
  EndedOperation ended{.operation = queue_.empty() ? nullptr : queue_.front(), .error = std::move(error)};
  if (ended.operation == nullptr && !exchanges_.empty()) ended.operation = exchanges_.front();
  if (ended.operation != nullptr && ended.operation->plan != nullptr && ended.operation->started) {
    const CallFailure failure{.code = ErrorCode::kSystem, .culprit = rank};
    runs_through([&] { environment_.transport->leave_call(ended.operation->call.tag, failure); });
  }
  announce_abort();
  return ended;
}

// Probes check for messages behind all receives, even those that were submitted after the probe. So renumber the
// probes and put them at the end of active_. Called with the lock held.
void Engine::renumber_probes() {
  for (const auto& probe : exchanges_) {
    if (!probe->probes) continue;
    active_.push_back(probe);
    if (probe->exchange != nullptr) probe->exchange->renumber();
    for (Transfer& transfer : probe->transfers) {  // of an operation that has not started
      transfer.tag.sequence = numbers_.upcoming(transfer.peer, transfer.direction);
    }
  }
}

// Ends an operation that was waiting or in progress when the communicator broke. If it is a collective that has
// started, its peers are notified.
Engine::EndedOperation Engine::break_off(const Error& broken) {
  const std::shared_ptr<Operation>& operation = active_.front();  // shared like the operations in the queue
  if (operation->started && operation->plan != nullptr) {
    environment_.transport->leave_call(operation->call.tag, CallFailure{.code = broken.code, .culprit = broken.rank});
  }
  return {.operation = operation, .error = broken};
}

Engine::EndedOperation Engine::drive_active(Until until, std::uint32_t submitted) {
  Idle idle;
  EndedOperation ended;
  while (true) {
    bool moved = false;
    ended = poll_active(moved);
    if (ended.operation != nullptr) break;
    if (until == Until::kOnePoll) {
      if (!moved) ended = check_clock_and_peers();
      break;
    }
    if (until == Until::kWanted && waiting_drivers_.load() > 0) break;
    if (submitted_.load(std::memory_order_acquire) != submitted) break;  // there may be a new operation to poll
    if (moved) {
      environment_.waiter->reset(idle, environment_.transport->doorbell());
      continue;
    }
    ended = pause(idle);
    if (ended.operation != nullptr) break;
  }
  environment_.waiter->reset(idle, environment_.transport->doorbell());
  return ended;
}

Engine::EndedOperation Engine::poll_active(bool& moved) {
  bool exchanges_wait = false;  // exchanges start in the order of their numbers
  for (const std::shared_ptr<Operation>& operation : active_) {
    if (!operation->started) {
      if (call_has_failed(*operation)) return {.operation = operation, .error = drop(*operation)};
      const bool exchange = operation->plan == nullptr;
      if ((operation->start_condition != nullptr && !operation->start_condition->open()) ||
          (exchange && exchanges_wait)) {
        exchanges_wait |= exchange;
        if (aborted_.load(std::memory_order_relaxed)) {
          return {.operation = operation, .error = aborted_error(operation->call)};
        }
        continue;
      }
      if (auto error = start(*operation)) return {.operation = operation, .error = std::move(error)};
      if (auto error = look_at_receivers(*operation)) return {.operation = operation, .error = std::move(error)};
    }
    if (operation->probes && exchanges_wait) continue;  // earlier receives may not have started yet
    bool this_moved = false;
    if (auto error = poll(*operation, this_moved)) return {.operation = operation, .error = std::move(error)};
    if (this_moved) operation->progressed = moved = true;
    // A rank that always progresses never pauses, so it looks for dead peers here.
    if (this_moved && ++moves_ % kMovesPerLook == 0) {
      if (EndedOperation ended = check_clock_and_peers(); ended.operation != nullptr) return ended;
    }
    const bool done = operation->plan != nullptr ? running_->done() : operation->exchange->done();
    if (done) return {.operation = operation, .error = disagreement_at_the_end(*operation)};
  }
  return {};
}

// In a collective with a root, some ranks only send (for example the root of a broadcast), so no message may show
// them a disagreement. Therefore each rank checks the arguments that the others have published before it reports
// success.
std::optional<Error> Engine::disagreement_at_the_end(const Operation& operation) {
  if (operation.plan == nullptr || !has_root(operation.plan->shape.collective.kind)) return std::nullopt;
  const FailureAnalyzer analyzer(rank_, ranks_, *environment_.transport);
  auto diagnosis = analyzer.mismatch(operation.call);
  const auto other = diagnosis || marks_ == nullptr ? std::nullopt : marks_->disagreement();
  // The tag is empty because the peer's board no longer has it.
  if (other) diagnosis = analyzer.bad_message(operation.call, {.peer = *other, .tag = {}});
  if (!diagnosis) return std::nullopt;
  environment_.transport->leave_call(operation.call.tag, diagnosis->failure);
  return std::move(diagnosis->error);
}

// Starts an operation, and opens its connections if they are not open. If this fails for a collective, the peers
// are notified.
std::optional<Error> Engine::start(Operation& operation) {
  operation.started = true;
  last_clock_ns_ = environment_.clock->now_ns();
  operation.deadline_ns = last_clock_ns_ + operation.timeout_ns;
  if (recorder_ != nullptr) record_begin(operation);
  if (operation.plan == nullptr) {
    for (Transfer& transfer : operation.transfers) {
      if (Status opened = open(transfer, connections_); !opened.ok()) return as_call_error(opened.error());
    }
    operation.exchange =
        std::make_unique<Exchange>(std::move(operation.transfers), operation.own, *environment_.transport, numbers_,
                                   operation.probes ? Exchange::Purpose::kProbe : Exchange::Purpose::kTransfer);
    return std::nullopt;
  }
  if (operation.by_mailbox) {
    running_ = mailboxes_.get();
    environment_.transport->enter_call(operation.call.tag, {});
    running_->start(operation.call);
    return std::nullopt;
  }
  if (Status opened = open(*operation.plan, connections_); !opened.ok()) {
    environment_.transport->enter_call(operation.call.tag, {});
    environment_.transport->leave_call(
        operation.call.tag, CallFailure{.code = opened.error().code, .culprit = static_cast<std::int32_t>(rank_)});
    return as_call_error(opened.error());
  }
  if (execution_plan_ != operation.plan) {
    plan_execution_ = std::make_unique<PlanExecution>(*operation.plan, *environment_.transport);
    execution_plan_ = operation.plan;
  }
  running_ = plan_execution_.get();
  if (operation.direct) {
    single_copy_->set_plan(*plan_execution_);
    running_ = single_copy_.get();
  }
  running_->start(operation.call);
  environment_.transport->enter_call(operation.call.tag, running_->offered(operation.call));
  // Peers whose short calls need no data from this rank check the marks and not the boards. See run_short().
  const bool marked = operation.direct || marks_ == nullptr;
  if (!marked && has_root(operation.plan->shape.collective.kind)) marks_->show_tag(operation.call.tag);
  if (std::exchange(last_failed_, false)) connections_.drop_stale(operation.call.tag);
  return std::nullopt;
}

// Returns an error if abort() was called on this rank.
std::optional<Error> Engine::own_abort(const Operation& operation) {
  if (!aborted_.load(std::memory_order_acquire)) return std::nullopt;
  if (operation.plan != nullptr) {
    environment_.transport->leave_call(operation.call.tag, CallFailure{.code = ErrorCode::kAborted, .culprit = -1});
  }
  return aborted_error(operation.call);
}

std::optional<Error> Engine::poll(Operation& operation, bool& moved) {
  if (aborted_.load(std::memory_order_relaxed)) return own_abort(operation);  // checked at every poll
  const FailureAnalyzer analyzer(rank_, ranks_, *environment_.transport);
  if (operation.plan == nullptr) {
    moved = operation.exchange->progress();
    if (!operation.exchange->bad_message()) return std::nullopt;
    return analyzer.bad_transfer(*operation.exchange).error;
  }
  moved = running_->progress();
  if (!running_->bad_message()) return std::nullopt;
  if (auto error = own_abort(operation)) return error;  // peers may have seen the abort before this rank did
  return give_up(operation, analyzer.bad_message(operation.call, *running_->bad_message()));
}

Engine::EndedOperation Engine::pause(Idle& idle) {
  const std::uint32_t sleeps_before = idle.sleeps;
  environment_.waiter->pause(idle, environment_.transport->doorbell(), kMaxSleepNs);
  if (idle.rounds % kRoundsPerClock != 0 && idle.sleeps == sleeps_before) return {};
  return check_clock_and_peers();
}

}  // namespace tutti
