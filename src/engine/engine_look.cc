// The checks of the driver while no operation makes progress: the clock, the deadlines and the peers. It also
// reports the rank that caused a failure.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/collective_table.h"
#include "engine/engine.h"
#include "engine/failure_analyzer.h"

namespace tutti {
namespace {

// Maximum wait for all ranks' arguments before a mismatch is reported.
constexpr std::int64_t kAllEnterNs = 200'000'000;
// How long a transfer must look hopeless before it is given up.
constexpr std::int64_t kSuspicionNs = 100'000'000;
// How long data from a peer that is gone may take to arrive.
constexpr std::int64_t kLostNs = 2'000'000'000;
// The longest time between two looks at the clock of a rank that is running.
constexpr std::int64_t kMaxClockGapNs = 100'000'000;
// Maximum number of deadline extensions without progress. The limit also applies if the caller polls rarely.
constexpr std::uint32_t kMaxExtensions = 3;
// Interval between looks at the peers' boards while nothing makes progress.
constexpr std::int64_t kLookEveryNs = 5'000'000;

// A receiver that was seen alive is not checked again for this long, because the check is a system call.
constexpr std::int64_t kSeenLiveNs = 100'000'000;

// Returns the suspicion if it has lasted for `lasting_ns` without progress, otherwise nothing.
std::optional<Diagnosis> confirmed(Operation& operation, std::optional<Diagnosis> suspicion, std::int64_t now_ns,
                                   std::int64_t lasting_ns) {
  if (!suspicion) operation.suspected_ns = 0;
  if (suspicion && operation.suspected_ns == 0) operation.suspected_ns = now_ns;
  if (suspicion && now_ns - operation.suspected_ns < lasting_ns) suspicion.reset();
  return suspicion;
}

}  // namespace

// True if this short call must go through the queue, where receivers are checked. That is necessary only for a rank
// that merely sends in a collective with a root, because such a rank would not notice a dead receiver.
bool Engine::must_look_at_receivers(const Collective& collective) const {
  if (!has_root(collective.kind)) return false;
  const bool from_root = row_of(collective.kind).root == RootHas::kTheInput;
  const bool only_sends = (context_.rank == collective.root) == from_root;
  return only_sends && context_.environment.clock->now_ns() - all_seen_ns_ >= kSeenLiveNs;
}

bool Engine::is_gone(std::uint32_t receiver) {
  std::int64_t& seen_ns = seen_live_ns_[receiver];
  if (last_clock_ns_ - seen_ns < kSeenLiveNs) return false;
  if (context_.transport.peer_status(receiver).life != PeerLife::kLive) return true;
  seen_ns = last_clock_ns_;
  return false;
}

// Calls by mailboxes have no connections whose peers could be checked. All ranks read the root's mailbox, or the
// root reads all of theirs, so every peer is checked.
bool Engine::any_peer_gone() {
  all_seen_ns_ = last_clock_ns_;
  for (std::uint32_t peer = 0; peer < context_.ranks; ++peer) {
    if (peer != context_.rank && is_gone(peer)) return true;
  }
  return false;
}

bool Engine::sends_to_gone_peer(const BoundPlan& plan) {
  for (const Channel& channel : plan.program.channels) {
    for (const Port& port : channel.ports) {
      if (port.direction == Direction::kSend && is_gone(port.peer)) return true;
    }
  }
  return false;
}

// Called when an operation has just started. A short send fits into slots or socket buffers, so this rank does not
// wait for the receiver and would not notice that the receiver's process has exited: the data would be lost without
// an error. The same is true for a collective with a root, in which some ranks only send. In all other collectives
// each rank waits for the others.
std::optional<Error> Engine::look_at_receivers(const Operation& operation) {
  const FailureAnalyzer analyzer = context_.analyzer();
  if (operation.plan == nullptr) {
    for (const Transfer& transfer : operation.exchange->transfers()) {
      if (transfer.direction != Direction::kSend || !is_gone(transfer.peer)) continue;
      if (auto diagnosis = analyzer.look_before(transfer)) return std::move(diagnosis->error);
    }
    return std::nullopt;
  }
  if (!has_root(operation.plan->shape.collective.kind)) return std::nullopt;
  const bool gone = operation.by_mailbox ? any_peer_gone() : sends_to_gone_peer(*operation.plan);
  auto diagnosis = gone ? analyzer.look(operation.call) : std::nullopt;
  return diagnosis ? std::optional(give_up(operation, std::move(*diagnosis))) : std::nullopt;
}

// Looks at the clock, and from time to time at the peers. Ends an operation if its deadline has passed or its peers
// are gone.
Engine::EndedOperation Engine::check_clock_and_peers() {
  const std::int64_t now_ns = context_.environment.clock->now_ns();
  const std::int64_t gap_ns = now_ns - std::exchange(last_clock_ns_, now_ns);
  bool late = false;
  for (const std::shared_ptr<Operation>& operation : active_) {
    if (!operation->started) continue;
    const bool queue_moved = operation->exchange != nullptr && operation->exchange->queue_has_moved();
    if (std::exchange(operation->progressed, false) || queue_moved) {
      operation->deadline_ns = now_ns + operation->timeout_ns;
      operation->extensions = 0;
      operation->suspected_ns = 0;
      if (context_.recorder != nullptr) context_.recorder->moved();
    }
    extend_deadline(*operation, now_ns, gap_ns);
    late |= now_ns >= operation->deadline_ns;
  }
  if (!late && now_ns - last_look_ns_ < kLookEveryNs) return {};
  last_look_ns_ = now_ns;
  context_.transport.pump();
  for (const std::shared_ptr<Operation>& operation : active_) {
    if (auto error = operation->started ? look_at(*operation, now_ns) : look_at_start_condition(*operation))
      return {.operation = operation, .error = std::move(error)};
  }
  if (context_.recorder != nullptr && context_.recorder->should_record_wait(now_ns)) record_waits(now_ns);
  return {};
}

// If this rank was stopped, or its clock has jumped, it has not seen yet what its peers did meanwhile. So their
// time starts again, at most kMostExtensions times.
void Engine::extend_deadline(Operation& operation, std::int64_t now_ns, std::int64_t gap_ns) {
  if (gap_ns < std::max(kMaxClockGapNs, operation.timeout_ns / 4) || operation.extensions == kMaxExtensions) return;
  ++operation.extensions;
  operation.deadline_ns = now_ns + operation.timeout_ns;
  if (operation.suspected_ns != 0) operation.suspected_ns = now_ns;
}

std::optional<Error> Engine::look_at(Operation& operation, std::int64_t now_ns) {
  const bool late = now_ns >= operation.deadline_ns;
  const std::int64_t timeout_ms = operation.timeout_ns / 1'000'000;
  const FailureAnalyzer analyzer = context_.analyzer();
  if (operation.plan == nullptr) {
    // A connection that the peer opened before it left may arrive after the peer's close frame.
    auto diagnosis = confirmed(operation, analyzer.look(*operation.exchange), now_ns, kSuspicionNs);
    if (!diagnosis && late) diagnosis = analyzer.timed_out(*operation.exchange, timeout_ms);
    return diagnosis ? std::optional(std::move(diagnosis->error)) : std::nullopt;
  }
  context_.connections.drop_stale(operation.call.tag);
  std::optional<Diagnosis> diagnosis = analyzer.look(operation.call);
  if (!diagnosis)
    diagnosis =
        confirmed(operation, analyzer.find_lost_sender(operation.call, running_->waits_for_ranks()), now_ns, kLostNs);
  if (!diagnosis && late) diagnosis = analyzer.timed_out(operation.call, timeout_ms, *running_, hint_for(operation));
  if (!diagnosis) return std::nullopt;
  if (auto error = own_abort(operation)) return error;
  return give_up(operation, std::move(*diagnosis));
}

// A hint for the timeout message: the missing ranks may have made the same call on device memory, which their GPUs
// carry out.
std::string_view Engine::hint_for(const Operation& operation) const {
  const bool on_host = operation.start_condition == nullptr && operation.call.tag.count > 0;
  if (!on_host || !beside_devices_.load(std::memory_order_relaxed)) return {};
  return "this call is on host memory, and GPUs carry out those on their own: pass memory of one kind on all ranks";
}

// Notifies the peers and returns the error. For a mismatch, it first waits for a limited time until all ranks have
// published their arguments. Then the culprit can be determined best, and all ranks report the same one.
Error Engine::give_up(const Operation& operation, Diagnosis diagnosis) {
  if (diagnosis.failure.code == ErrorCode::kMismatch) {
    const std::uint64_t sequence = operation.call.tag.sequence;
    const std::int64_t latest_ns = std::min(context_.environment.clock->now_ns() + kAllEnterNs, operation.deadline_ns);
    const auto entered = [&](std::uint32_t, const PeerStatus& status) {
      return status.life != PeerLife::kLive || status.entered >= sequence;
    };
    wait_for_peers(latest_ns, std::ref(entered));
    if (auto settled = context_.analyzer().mismatch(operation.call)) diagnosis = std::move(*settled);
  }
  context_.transport.leave_call(operation.call.tag, diagnosis.failure);
  return std::move(diagnosis.error);
}

// Waits until `wanted` returns true for every peer, or until the time is over.
void Engine::wait_for_peers(std::int64_t latest_ns,
                            const std::function<bool(std::uint32_t, const PeerStatus&)>& wanted) {
  Idle idle;
  for (std::uint32_t peer = 0; peer < context_.ranks; ++peer) {
    while (peer != context_.rank && context_.environment.clock->now_ns() < latest_ns) {
      const PeerStatus status = context_.transport.peer_status(peer);
      if (wanted(peer, status)) break;
      context_.environment.waiter->pause(idle, context_.transport.doorbell(), 1'000'000);
    }
  }
  context_.environment.waiter->reset(idle, context_.transport.doorbell());
}

}  // namespace tutti
