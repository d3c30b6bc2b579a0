#include "engine/immediate_probe.h"

#include <chrono>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// Maximum time that look_at_receiver() waits for another thread to give up the driver's role.
constexpr std::chrono::milliseconds kMaxDriverWait{20};

// While an object of this class exists, its thread has the driver's role for work that is not in the queue. So no
// other thread drives, and finalize() waits. Created with the lock held. The destructor locks it if necessary.
class UnqueuedDrive {
 public:
  UnqueuedDrive(std::unique_lock<std::mutex>& lock, DriverRole& role) : lock_(lock), role_(role) {
    role_.take_unqueued();
  }
  ~UnqueuedDrive() {
    if (!lock_.owns_lock()) lock_.lock();
    role_.release();
  }
  UnqueuedDrive(const UnqueuedDrive&) = delete;
  UnqueuedDrive& operator=(const UnqueuedDrive&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
  DriverRole& role_;
};

}  // namespace

Result<std::optional<std::uint32_t>> ImmediateProbe::look_for_message(std::vector<Transfer> probes) {
  std::unique_lock lock(state_.mutex);
  if (state_.role.taken()) state_.role.wait_for_role(lock, [this] { return !state_.role.taken(); });
  if (state_.failure.broken()) {
    state_.role.notify_all();
    return *state_.failure.broken();
  }
  const UnqueuedDrive drive(lock, state_.role);
  state_.queue.remove_claimed(probes);
  if (probes.empty()) return std::optional<std::uint32_t>();
  for (Transfer& probe : probes) probe.tag.sequence = state_.queue.numbers().upcoming(probe.peer, Direction::kReceive);
  lock.unlock();
  for (Transfer& probe : probes) TUTTI_TRY(open(probe, context_.connections));
  Exchange look(std::move(probes), {}, context_.transport, state_.queue.numbers(), Exchange::Purpose::kProbe);
  look.progress();
  const bool found = look.done();
  look.give_up();
  lock.lock();
  // If a receive from that peer was submitted meanwhile, the message belongs to the receive.
  if (!found || look.is_stale()) return std::optional<std::uint32_t>();
  return std::optional(look.found());
}

Result<bool> ImmediateProbe::look_at_receiver(Transfer send) {
  std::unique_lock lock(state_.mutex);
  if (state_.role.taken()) state_.role.wait_for_role(lock, kMaxDriverWait);
  if (state_.failure.broken() || state_.role.taken()) {
    state_.role.notify_all();
    return state_.failure.broken() ? Result<bool>(*state_.failure.broken()) : true;
  }
  const UnqueuedDrive drive(lock, state_.role);
  send.tag.sequence = state_.queue.numbers().upcoming(send.peer, Direction::kSend);
  lock.unlock();
  // an attempt to connect may be the only way to notice that the receiver's process has ended
  TUTTI_TRY(open(send, context_.connections));
  if (const auto diagnosis = context_.analyzer().look_before(send)) return diagnosis->error;
  return !context_.transport.peer_status(send.peer).ended;
}

}  // namespace tutti
