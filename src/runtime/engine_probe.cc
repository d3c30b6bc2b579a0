// A look for a message, without waiting for one.
#include <memory>
#include <utility>

#include "base/assert.h"
#include "runtime/engine.h"

namespace tutti {
namespace {

// Ends a drive, also when an exception does.
class DriveEnd {
 public:
  DriveEnd(std::unique_lock<std::mutex>& lock, bool& driven, std::condition_variable& changed)
      : lock_(lock), driven_(driven), changed_(changed) {}
  ~DriveEnd() {
    if (!lock_.owns_lock()) lock_.lock();
    driven_ = false;
    changed_.notify_all();
  }
  DriveEnd(const DriveEnd&) = delete;
  DriveEnd& operator=(const DriveEnd&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
  bool& driven_;
  std::condition_variable& changed_;
};

}  // namespace

Result<std::optional<std::uint32_t>> Engine::look_for_message(std::vector<Transfer> probes) {
  std::unique_lock lock(mutex_);
  if (driven_) {
    wanting_.fetch_add(1);
    world_.transport->doorbell().ring();  // the driver may sleep
    changed_.wait(lock, [&] { return !driven_; });
    wanting_.fetch_sub(1);
  }
  if (broken_) {
    changed_.notify_all();  // whoever kept still because we wanted to drive
    return *broken_;
  }
  driven_ = true;
  const DriveEnd end(lock, driven_, changed_);
  // The next message of such a peer belongs to a receive that has its number and has not begun. A probe behind it would
  // take the message for one that an earlier call has left, and drop it.
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
  Exchange look(std::move(probes), {}, *world_.transport, numbers_, Exchange::Purpose::kProbe);
  look.progress();
  const bool found = look.done();
  look.give_up();
  lock.lock();
  // A receive that was called for meanwhile has the message.
  if (!found || look.is_stale()) return std::optional<std::uint32_t>();
  return std::optional(look.found());
}

}  // namespace tutti
