// The engine's way for short calls: past the queue. The driver's duties and locks are those of engine.cc.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/exceptions.h"
#include "engine/engine.h"
#include "plan/collective.h"

namespace tutti {
namespace {

constexpr std::uint32_t kShortPolls = 400;  // of mailboxes, with the lock held: about 20 us
constexpr std::uint32_t kEagerPolls = 30;   // the first of these, without a pause between
constexpr std::uint32_t kShortPauses = 50;  // after these, before the call is queued

}  // namespace

// Starts it and polls it a few times, by its own type: each call counts.
template <class Kind>
void Engine::start_short(Kind& running, const Call& call, std::uint64_t& waited_until) {
  running_ = &running;
  environment_.transport->enter_call(call.tag, running.offered(call));
  running.start(call);
  const std::uint32_t polls = std::min(environment_.waiter->spins(), kShortPolls);
  for (std::uint32_t vain = 0; vain < polls && !running.done();) {
    if (vain >= kEagerPolls) {
      if (recorder_ != nullptr) waited_until = recorder_->now();  // in a wait it costs nothing, after it it would
      relax();
    }
    if (!running.progress()) ++vain;
  }
}

// Without a queue as long as that is quick: first with the lock held, as others may want it for a moment only, then as
// the driver, giving the core away now and then. A wait that lasts is that of an operation like any other.
std::optional<Status> Engine::run_short(Way way, BoundPlan& plan, Call& numbered, std::int64_t timeout_ns,
                                        std::unique_lock<std::mutex>& order) {
  const bool direct = way == Way::kByMemory;
  std::unique_lock lock(mutex_);
  if (mailboxes_ == nullptr || broken_ || driven_ || !nothing_to_do()) return std::nullopt;
  if (direct && (execution_plan_ != &plan || last_failed_)) return std::nullopt;
  if (!direct && must_look_at_receivers(plan.shape.collective)) return std::nullopt;
  // Made before the call begins, because the call must be able to become an operation at any time.
  if (spare_ == nullptr) spare_ = std::make_shared<Operation>();
  numbered.tag.sequence = ++last_sequence_;
  order.unlock();
  Operation& operation = *spare_;
  operation.plan = &plan;
  operation.by_mailbox = !direct;
  operation.direct = direct;
  operation.timeout_ns = timeout_ns;
  operation.started = true;
  std::uint64_t waited_until = 0;  // 0: it never had to wait
  try {
    if (run_past_queue(lock, operation, numbered, waited_until)) return Status();
    operation.call = std::move(numbered);
    queue_.push_front(spare_);  // before what was submitted meanwhile
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    return end_short_by_exception(lock, operation, numbered);
  }
  const std::shared_ptr<Operation> queued = std::exchange(spare_, nullptr);  // shared as wherever operations are queued
  queued->deadline_ns = last_clock_ns_ + timeout_ns;
  submitted_.fetch_add(1, std::memory_order_release);
  drive(lock, *queued);
  return queued->result;
}

// True: the call has ended well. False: it has to wait as an operation, and last_clock_ns_ is set.
bool Engine::run_past_queue(std::unique_lock<std::mutex>& lock, Operation& operation, const Call& call,
                            std::uint64_t& waited_until) {
  const auto way_taken = operation.direct ? recording::Way::kDirect : recording::Way::kMailboxes;
  operation.recorded = recorder_ == nullptr ? 0 : recorder_->begin(call.tag, way_taken);
  if (operation.direct) {
    single_copy_->set_plan(*plan_execution_);
    start_short(*single_copy_, call, waited_until);
  } else {
    start_short(*mailboxes_, call, waited_until);
  }
  if (!running_->done()) {
    driven_ = between_queues_ = true;
    const std::uint32_t submitted = submitted_.load(std::memory_order_relaxed);
    lock.unlock();
    std::exception_ptr thrown;
    try {
      give_way(submitted);
    } catch (...) {
      thrown = std::current_exception();
    }
    if (recorder_ != nullptr) waited_until = recorder_->now();
    lock.lock();
    driven_ = between_queues_ = false;
    // The progress thread, too: it may have looked at what was submitted meanwhile, and kept still because we drove.
    if (wanting_.load() > 0 || background_wanted_) changed_.notify_all();
    if (thrown) std::rethrow_exception(thrown);
  }
  const bool rooted = has_root(operation.plan->shape.collective.kind);
  if (running_->done() && !(rooted && marks_->disagreement())) {
    if (!rooted) marks_->note_all_entered(call.tag.sequence);
    environment_.transport->leave_call(call.tag, std::nullopt);
    last_good_.store(call.tag.sequence, std::memory_order_release);
    if (recorder_ != nullptr) recorder_->end(operation.recorded, waited_until);
    return true;
  }
  last_clock_ns_ = environment_.clock->now_ns();
  return false;
}

// Called in a catch block, with the lock held. The operation was never queued, so it is finished here.
Status Engine::end_short_by_exception(std::unique_lock<std::mutex>& lock, Operation& operation, Call& call) noexcept {
  const auto rank = static_cast<std::int32_t>(rank_);
  Error error = error_of_exception(ErrorScope::kCommunicator, rank, "an internal failure of this rank");
  if (!broken_) broken_ = copy_of(error);
  if (operation.call.tag.sequence == 0) operation.call = std::move(call);
  driven_ = true;
  lock.unlock();
  const CallFailure failure{.code = ErrorCode::kSystem, .culprit = rank};
  runs_through([&] { environment_.transport->leave_call(operation.call.tag, failure); });
  announce_abort();
  finish(operation, std::move(error));
  lock.lock();
  driven_ = false;
  changed_.notify_all();
  return std::exchange(operation.result, Status());
}

// Polls what runs a few times and gives the core away between. The driver's.
void Engine::give_way(std::uint32_t submitted) {
  Idle idle;
  for (std::uint32_t round = 0; round < kShortPauses && !idle.armed; ++round) {
    environment_.waiter->pause(idle, environment_.transport->doorbell(), 0);
    while (running_->progress() && !running_->done())
      environment_.waiter->reset(idle, environment_.transport->doorbell());
    if (running_->done() || aborted_.load(std::memory_order_relaxed)) break;
    if (submitted_.load(std::memory_order_acquire) != submitted) break;
  }
  if (running_->done()) return environment_.waiter->reset(idle, environment_.transport->doorbell());
  if (idle.armed) environment_.transport->doorbell().disarm();  // nothing is learnt from a wait that goes on elsewhere
}

}  // namespace tutti
