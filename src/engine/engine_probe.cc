// Checks for a message or for a live receiver without waiting for either.
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "engine/engine.h"

namespace tutti {
namespace {

// How long look_at_receiver() waits for another driver.
constexpr std::chrono::milliseconds kMaxDriverWait{20};

// During its lifetime this thread drives work that is in no queue. So no other thread drives, and finalize() waits.
// Created with the lock held.
class UnqueuedDrive {
 public:
  UnqueuedDrive(std::unique_lock<std::mutex>& lock, bool& driven, bool& between_queues,
                std::condition_variable& changed)
      : lock_(lock), driven_(driven), drives_unqueued_(between_queues), changed_(changed) {
    driven_ = drives_unqueued_ = true;
  }
  ~UnqueuedDrive() {
    if (!lock_.owns_lock()) lock_.lock();
    driven_ = drives_unqueued_ = false;
    changed_.notify_all();
  }
  UnqueuedDrive(const UnqueuedDrive&) = delete;
  UnqueuedDrive& operator=(const UnqueuedDrive&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
  bool& driven_;
  bool& drives_unqueued_;
  std::condition_variable& changed_;
};

}  // namespace

Result<std::optional<std::uint32_t>> Engine::look_for_message(std::vector<Transfer> probes) {
  std::unique_lock lock(mutex_);
  if (driven_) {
    waiting_drivers_.fetch_add(1);
    environment_.transport->doorbell().ring();  // wakes the thread that drives the engine
    changed_.wait(lock, [&] { return !driven_; });
    waiting_drivers_.fetch_sub(1);
  }
  if (broken_) {
    // Wake threads that did not drive because this thread wanted to.
    changed_.notify_all();
    return *broken_;
  }
  const UnqueuedDrive drive(lock, driven_, drives_unqueued_, changed_);
  // Leaves out the peers from which a receive is queued that has not started. The peer's next message has the
  // number of that receive. The probe has the number after it, so it would discard the message as one of an earlier
  // call.
  for (const auto& operation : exchanges_) {
    if (operation->started || operation->probes) continue;
    for (const Transfer& transfer : operation->transfers) {
      if (transfer.direction != Direction::kReceive) continue;
      std::erase_if(probes, [&](const Transfer& probe) { return probe.peer == transfer.peer; });
    }
  }
  if (probes.empty()) return std::optional<std::uint32_t>();
  for (Transfer& probe : probes) probe.tag.sequence = numbers_.upcoming(probe.peer, Direction::kReceive);
  lock.unlock();
  for (Transfer& probe : probes) TUTTI_TRY(open(probe, connections_));
  Exchange look(std::move(probes), {}, *environment_.transport, numbers_, Exchange::Purpose::kProbe);
  look.progress();
  const bool found = look.done();
  look.give_up();
  lock.lock();
  // If a receive was submitted meanwhile, the message belongs to it.
  if (!found || look.is_stale()) return std::optional<std::uint32_t>();
  return std::optional(look.found());
}

Result<bool> Engine::look_at_receiver(Transfer send) {
  std::unique_lock lock(mutex_);
  if (driven_) {
    waiting_drivers_.fetch_add(1);
    environment_.transport->doorbell().ring();  // wakes the thread that drives the engine
    changed_.wait_for(lock, kMaxDriverWait, [&] { return !driven_; });
    waiting_drivers_.fetch_sub(1);
  }
  if (broken_ || driven_) {
    // Wake threads that did not drive because this thread wanted to.
    changed_.notify_all();
    return broken_ ? Result<bool>(*broken_) : true;
  }
  const UnqueuedDrive drive(lock, driven_, drives_unqueued_, changed_);
  send.tag.sequence = numbers_.upcoming(send.peer, Direction::kSend);
  lock.unlock();
  TUTTI_TRY(open(send, connections_));  // a refused connection may be the only sign of a lost receiver
  if (const auto diagnosis = FailureAnalyzer(rank_, ranks_, *environment_.transport).look_before(send))
    return diagnosis->error;
  return !environment_.transport->peer_status(send.peer).ended;
}

}  // namespace tutti
