// What the driver does while nothing moves: looks at the clock and at its peers, and says who is to blame.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/collective_table.h"
#include "engine/engine.h"
#include "engine/failure_analyzer.h"

namespace tutti {
namespace {

constexpr std::int64_t kAllEnterNs =
    200'000'000;  // longest wait for all ranks' arguments before a mismatch is reported
constexpr std::int64_t kSuspicionNs = 100'000'000;  // how long a transfer must look hopeless before it is given up
constexpr std::int64_t kLostNs = 2'000'000'000;     // how long what a peer that is gone has sent may take to arrive
constexpr std::int64_t kAwayNs = 100'000'000;       // the longest that a rank that runs does not look at the clock
constexpr std::uint32_t kMostExcuses = 3;  // without progress between: bounded, also where the caller looks rarely
constexpr std::int64_t kLookEveryNs = 5'000'000;  // at the peers' boards, while nothing moves

// A receiver that was seen to live is not looked at again for this long: the look is a system call.
constexpr std::int64_t kSeenLiveNs = 100'000'000;

// A suspicion that has lasted so long without any progress; else nothing.
std::optional<Diagnosis> confirmed(Operation& operation, std::optional<Diagnosis> suspicion, std::int64_t now_ns,
                                   std::int64_t lasting_ns) {
  if (!suspicion) operation.suspected_ns = 0;
  if (suspicion && operation.suspected_ns == 0) operation.suspected_ns = now_ns;
  if (suspicion && now_ns - operation.suspected_ns < lasting_ns) suspicion.reset();
  return suspicion;
}

}  // namespace

// True if this short call must go through the queue, where receivers are checked. Only ranks that merely send in a
// rooted collective need that, because they would not notice a dead receiver.
bool Engine::must_look_at_receivers(const Collective& collective) const {
  if (!has_root(collective.kind)) return false;
  const bool from_root = row_of(collective.kind).root == RootHas::kTheInput;
  const bool only_sends = (rank_ == collective.root) == from_root;
  return only_sends && environment_.clock->now_ns() - all_seen_ns_ >= kSeenLiveNs;
}

bool Engine::is_gone(std::uint32_t receiver) {
  std::int64_t& seen_ns = seen_live_ns_[receiver];
  if (last_clock_ns_ - seen_ns < kSeenLiveNs) return false;
  if (environment_.transport->peer_status(receiver).life != PeerLife::kLive) return true;
  seen_ns = last_clock_ns_;
  return false;
}

// A call by mailboxes has no connections whose peers could be checked. All ranks read the root's mailbox, or the root
// reads all of theirs, so every peer is checked.
bool Engine::any_is_gone() {
  all_seen_ns_ = last_clock_ns_;
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_ && is_gone(peer)) return true;
  }
  return false;
}

bool Engine::sends_to_the_gone(const BoundPlan& plan) {
  for (const Channel& channel : plan.program.channels) {
    for (const Port& port : channel.ports) {
      if (port.direction == Direction::kSend && is_gone(port.peer)) return true;
    }
  }
  return false;
}

// Called when an operation has just started. A short send fits into slots or socket buffers, so this rank does not wait
// for the receiver and would not learn that its process has ended: the data would be lost without an error. The same is
// true of a collective with a root, where some ranks only send. In all other collectives each rank waits for the
// others.
std::optional<Error> Engine::look_at_receivers(const Operation& operation) {
  const FailureAnalyzer analyzer(rank_, ranks_, *environment_.transport);
  if (operation.plan == nullptr) {
    for (const Transfer& transfer : operation.exchange->transfers()) {
      if (transfer.direction != Direction::kSend || !is_gone(transfer.peer)) continue;
      if (auto diagnosis = analyzer.look_before(transfer)) return std::move(diagnosis->error);
    }
    return std::nullopt;
  }
  if (!has_root(operation.plan->shape.collective.kind)) return std::nullopt;
  const bool gone = operation.by_mailbox ? any_is_gone() : sends_to_the_gone(*operation.plan);
  auto diagnosis = gone ? analyzer.look(operation.call) : std::nullopt;
  return diagnosis ? std::optional(give_up(operation, std::move(*diagnosis))) : std::nullopt;
}

// At the clock, and now and then at the peers. An operation whose deadline has passed or whose peers are gone ends.
Engine::Ended Engine::look_around() {
  const std::int64_t now_ns = environment_.clock->now_ns();
  const std::int64_t away_ns = now_ns - std::exchange(last_clock_ns_, now_ns);
  bool late = false;
  for (const std::shared_ptr<Operation>& operation : active_) {
    if (!operation->started) continue;
    const bool queue_moved = operation->exchange != nullptr && operation->exchange->queue_has_moved();
    if (std::exchange(operation->progressed, false) || queue_moved) {
      operation->deadline_ns = now_ns + operation->timeout_ns;
      operation->excuses = 0;
      operation->suspected_ns = 0;
      if (recorder_ != nullptr) recorder_->moved();
    }
    excuse(*operation, now_ns, away_ns);
    late |= now_ns >= operation->deadline_ns;
  }
  if (!late && now_ns - last_look_ns_ < kLookEveryNs) return {};
  last_look_ns_ = now_ns;
  environment_.transport->pump();
  for (const std::shared_ptr<Operation>& operation : active_) {
    if (auto error = operation->started ? look_at(*operation, now_ns) : look_at_start_condition(*operation))
      return {.operation = operation, .error = std::move(error)};
  }
  if (recorder_ != nullptr && recorder_->tells_waits(now_ns)) record_waits(now_ns);
  return {};
}

// A rank that was stopped itself, or whose clock has leapt, knows nothing yet of what its peers did meanwhile: they get
// their time anew, a few times.
void Engine::excuse(Operation& operation, std::int64_t now_ns, std::int64_t away_ns) {
  if (away_ns < std::max(kAwayNs, operation.timeout_ns / 4) || operation.excuses == kMostExcuses) return;
  ++operation.excuses;
  operation.deadline_ns = now_ns + operation.timeout_ns;
  if (operation.suspected_ns != 0) operation.suspected_ns = now_ns;
}

std::optional<Error> Engine::look_at(Operation& operation, std::int64_t now_ns) {
  const bool late = now_ns >= operation.deadline_ns;
  const std::int64_t timeout_ms = operation.timeout_ns / 1'000'000;
  const FailureAnalyzer analyzer(rank_, ranks_, *environment_.transport);
  if (operation.plan == nullptr) {
    // A connection that the peer opened before it went away may not have come yet, though its goodbye has.
    auto diagnosis = confirmed(operation, analyzer.look(*operation.exchange), now_ns, kSuspicionNs);
    if (!diagnosis && late) diagnosis = analyzer.timed_out(*operation.exchange, timeout_ms);
    return diagnosis ? std::optional(std::move(diagnosis->error)) : std::nullopt;
  }
  connections_.drop_stale(operation.call.tag);
  std::optional<Diagnosis> diagnosis = analyzer.look(operation.call);
  if (!diagnosis)
    diagnosis = confirmed(operation, analyzer.bereft(operation.call, running_->waits_for_ranks()), now_ns, kLostNs);
  if (!diagnosis && late) diagnosis = analyzer.timed_out(operation.call, timeout_ms, *running_, hint_for(operation));
  if (!diagnosis) return std::nullopt;
  if (auto error = own_abort(operation)) return error;
  return give_up(operation, std::move(*diagnosis));
}

// Ranks that are missing may have made this very call on device memory, by their GPUs.
std::string_view Engine::hint_for(const Operation& operation) const {
  const bool on_host = operation.start_condition == nullptr && operation.call.tag.count > 0;
  if (!on_host || !beside_devices_.load(std::memory_order_relaxed)) return {};
  return "this call is on host memory, and GPUs carry out those on their own: pass memory of one kind on all ranks";
}

// Tells the peers and returns the error. Who is to blame for a mismatch is said best when all ranks have shown their
// arguments, and then all ranks say the same; so that is waited for, within bounds.
Error Engine::give_up(const Operation& operation, Diagnosis diagnosis) {
  if (diagnosis.failure.code == ErrorCode::kMismatch) {
    const std::uint64_t sequence = operation.call.tag.sequence;
    const std::int64_t latest_ns = std::min(environment_.clock->now_ns() + kAllEnterNs, operation.deadline_ns);
    const auto entered = [&](std::uint32_t, const PeerStatus& status) {
      return status.life != PeerLife::kLive || status.entered >= sequence;
    };
    wait_for_peers(latest_ns, std::ref(entered));
    if (auto settled = FailureAnalyzer(rank_, ranks_, *environment_.transport).mismatch(operation.call))
      diagnosis = std::move(*settled);
  }
  environment_.transport->leave_call(operation.call.tag, diagnosis.failure);
  return std::move(diagnosis.error);
}

// Until every peer is as wanted, or the time is over.
void Engine::wait_for_peers(std::int64_t latest_ns,
                            const std::function<bool(std::uint32_t, const PeerStatus&)>& wanted) {
  Idle idle;
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    while (peer != rank_ && environment_.clock->now_ns() < latest_ns) {
      const PeerStatus status = environment_.transport->peer_status(peer);
      if (wanted(peer, status)) break;
      environment_.waiter->pause(idle, environment_.transport->doorbell(), 1'000'000);
    }
  }
  environment_.waiter->reset(idle, environment_.transport->doorbell());
}

}  // namespace tutti
