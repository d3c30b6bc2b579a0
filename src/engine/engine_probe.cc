// Looks for a message or at a receiver, without waiting for either.
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "engine/engine.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kLongestTurn{20};  // that a look at a receiver waits for another driver

// Drives what stands in no queue while it lives, so that no other thread drives and finalize() waits. Under the lock.
class UnqueuedDrive {
 public:
  UnqueuedDrive(std::unique_lock<std::mutex>& lock, bool& driven, bool& between_queues,
                std::condition_variable& changed)
      : lock_(lock), driven_(driven), between_queues_(between_queues), changed_(changed) {
    driven_ = between_queues_ = true;
  }
  ~UnqueuedDrive() {
    if (!lock_.owns_lock()) lock_.lock();
    driven_ = between_queues_ = false;
    changed_.notify_all();
  }
  UnqueuedDrive(const UnqueuedDrive&) = delete;
  UnqueuedDrive& operator=(const UnqueuedDrive&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
  bool& driven_;
  bool& between_queues_;
  std::condition_variable& changed_;
};

}  // namespace

Result<std::optional<std::uint32_t>> Engine::look_for_message(std::vector<Transfer> probes) {
  std::unique_lock lock(mutex_);
  if (driven_) {
    wanting_.fetch_add(1);
    environment_.transport->doorbell().ring();  // the driver may sleep
    changed_.wait(lock, [&] { return !driven_; });
    wanting_.fetch_sub(1);
  }
  if (broken_) {
    changed_.notify_all();  // whoever kept still because we wanted to drive
    return *broken_;
  }
  const UnqueuedDrive drive(lock, driven_, between_queues_, changed_);
  // Leaves out the peers from which a receive is queued that has not begun: their next message has that receive's
  // number. The probe has the number after it and would discard the message as one of an earlier call.
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
  // A receive that was called for meanwhile has the message.
  if (!found || look.is_stale()) return std::optional<std::uint32_t>();
  return std::optional(look.found());
}

Result<bool> Engine::look_at_receiver(Transfer send) {
  std::unique_lock lock(mutex_);
  if (driven_) {
    wanting_.fetch_add(1);
    environment_.transport->doorbell().ring();  // the driver may sleep
    changed_.wait_for(lock, kLongestTurn, [&] { return !driven_; });
    wanting_.fetch_sub(1);
  }
  if (broken_ || driven_) {
    changed_.notify_all();  // whoever kept still because we wanted to drive
    return broken_ ? Result<bool>(*broken_) : true;
  }
  const UnqueuedDrive drive(lock, driven_, between_queues_, changed_);
  send.tag.sequence = numbers_.upcoming(send.peer, Direction::kSend);
  lock.unlock();
  TUTTI_TRY(open(send, connections_));  // a connection that is refused may be the only sign
  if (const auto diagnosis = FailureAnalyzer(rank_, ranks_, *environment_.transport).look_before(send))
    return diagnosis->error;
  return !environment_.transport->peer_status(send.peer).ended;
}

}  // namespace tutti
