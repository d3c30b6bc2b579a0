// The engine's way for the shortest calls: straight to the slates, past the queue. The driver's duties and locks are
// those of engine.cc.
#include <algorithm>
#include <utility>

#include "plan/collective.h"
#include "runtime/engine.h"

namespace tutti {
namespace {

constexpr std::uint32_t kShortPolls = 400;  // of slates, with the lock held: about 20 us
constexpr std::uint32_t kEagerPolls = 30;   // the first of these, without a pause between
constexpr std::uint32_t kShortPauses = 50;  // after these, before the call is queued

}  // namespace

// Without a queue as long as that is quick: first with the lock held, as others may want it for a moment only, then as
// the driver, giving the core away now and then. A wait that lasts is that of an operation like any other.
std::optional<Status> Engine::run_by_slates(BoundPlan& plan, Call& numbered, std::int64_t timeout_ns,
                                            std::unique_lock<std::mutex>& order) {
  std::unique_lock lock(mutex_);
  if (slates_ == nullptr || broken_ || driven_ || !nothing_to_do()) return std::nullopt;
  numbered.tag.sequence = ++last_sequence_;
  order.unlock();
  world_.transport->enter_call(numbered.tag, {});
  slates_->start(numbered);
  const std::uint32_t polls = std::min(world_.waiter->spins(), kShortPolls);
  for (std::uint32_t poll = 0; poll < polls && !slates_->done(); ++poll) {
    if (poll >= kEagerPolls) relax();
    slates_->progress();
  }
  if (!slates_->done()) {
    driven_ = between_queues_ = true;
    const std::uint32_t submitted = submitted_.load(std::memory_order_relaxed);
    lock.unlock();
    give_way(submitted);
    lock.lock();
    driven_ = between_queues_ = false;
    // The progress thread, too: it may have looked at what was submitted meanwhile, and kept still because we drove.
    if (wanting_.load() > 0 || background_wanted_) changed_.notify_all();
  }
  if (slates_->done() && !has_root(plan.shape.collective.kind)) {
    marks_->note_all_entered(numbered.tag.sequence);
    world_.transport->leave_call(numbered.tag, std::nullopt);
    return Status();
  }
  auto operation = std::make_shared<Operation>();  // as wherever operations are queued
  operation->plan = &plan;
  operation->by_slates = true;
  operation->call = std::move(numbered);
  operation->timeout_ns = timeout_ns;
  operation->deadline_ns = world_.clock->now_ns() + timeout_ns;
  operation->started = true;
  running_ = slates_.get();
  queue_.push_front(operation);  // before what was submitted meanwhile
  submitted_.fetch_add(1, std::memory_order_release);
  drive(lock, *operation);
  return operation->result;
}

// Polls the slates a few times and gives the core away between. The driver's.
void Engine::give_way(std::uint32_t submitted) {
  Idle idle;
  for (std::uint32_t round = 0; round < kShortPauses && !idle.armed; ++round) {
    world_.waiter->pause(idle, world_.transport->doorbell(), 0);
    slates_->progress();
    if (slates_->done() || aborted_.load(std::memory_order_relaxed)) break;
    if (submitted_.load(std::memory_order_acquire) != submitted) break;
  }
  if (slates_->done()) return world_.waiter->reset(idle, world_.transport->doorbell());
  if (idle.armed) world_.transport->doorbell().disarm();  // nothing is learnt from a wait that goes on elsewhere
}

}  // namespace tutti
