#include "engine/failed_operations.h"

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

// Maximum time to wait until all ranks have published their arguments, before a mismatch is reported.
constexpr std::int64_t kAllEnterNs = 200'000'000;
// Time after which an action of a peer is normally visible to this rank on the peer's status board.
constexpr std::int64_t kBoardDelayNs = 100'000'000;
// Maximum time to wait for peers that may still use the memory of a failed operation.
constexpr std::int64_t kReclaimTimeoutNs = 1'000'000'000;

}  // namespace

std::optional<Error> FailedOperations::find_own_abort(const Operation& operation) const {
  if (!failure_.aborted(std::memory_order_acquire)) return std::nullopt;
  if (operation.plan != nullptr) {
    context_.transport.leave_call(operation.call.tag, CallFailure{.code = ErrorCode::kAborted, .culprit = -1});
  }
  return aborted_error(operation.call);
}

Error FailedOperations::aborted_error(const Call& call) {
  return {ErrorCode::kAborted, ErrorScope::kCommunicator, -1, describe(call.tag) + ": abort() was called on this rank"};
}

Error FailedOperations::give_up(const Operation& operation, Diagnosis diagnosis) const {
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

// Waits until `wanted` has returned true for every peer, or until the time `latest_ns` of the environment's clock.
void FailedOperations::wait_for_peers(std::int64_t latest_ns, const Condition& wanted) const {
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

void FailedOperations::abandon(Operation& operation, ErrorScope scope,
                               std::span<const std::shared_ptr<Operation>> active) {
  if (operation.plan == nullptr) {
    if (operation.exchange != nullptr) reclaim_memory(operation, scope, active);
    return;
  }
  tasks_.note_failure(operation);
  if (operation.started && tasks_.running() != nullptr) reclaim_memory(operation, scope, active);
}

// Waits until no peer uses the memory of a failed operation, at most kReclaimTimeoutNs. Peers that are inside the
// operation may have the address of this rank's memory. They may use it until they notice the failure, or until they
// confirm that they have stopped. revoke_output() or release_buffers() asks them to stop.
void FailedOperations::reclaim_memory(Operation& operation, ErrorScope scope,
                                      std::span<const std::shared_ptr<Operation>> active) {
  const bool collective = operation.plan != nullptr;
  CollectiveTask* const task = collective ? tasks_.running() : nullptr;
  const bool shown = !collective || (task != nullptr && task->shows_output());
  const bool mapped = collective && (operation.direct || operation.call.output_window.window != 0);
  const std::uint64_t sequence = operation.call.tag.sequence;
  std::int64_t begin_ns = context_.environment.clock->now_ns();
  const auto revoked = [&](std::uint32_t peer) {
    return collective ? task->revoke_output(peer) : operation.exchange->release_buffers(peer);
  };
  // Ask all peers to stop before waiting for any of them; the waiting loop below then collects the answers.
  for (std::uint32_t peer = 0; shown && peer < context_.ranks; ++peer) static_cast<void>(revoked(peer));
  // After an error of this scope, all operations in progress end, one after another. They share one time limit, which
  // began when the first of them ended.
  if (scope >= ErrorScope::kConnection) {
    if (broken_since_ns_ == 0) {
      revoke_all(active);
      broken_since_ns_ = begin_ns;
    }
    begin_ns = broken_since_ns_;
  }
  // True if `peer` no longer uses this rank's memory. A peer that aborts or leaves may still access the memory for a
  // moment, and this rank may see its status only kBoardDelayNs later. So if a peer has not confirmed that it has
  // stopped, a status by which it is outside the call or has left the communicator counts only that long after the wait
  // began.
  const auto lets_go = [&](std::uint32_t peer, const PeerStatus& status) {
    if (status.life == PeerLife::kLost || status.life == PeerLife::kUnreachable) return true;
    const bool outside = collective && (status.left >= sequence || status.entered < sequence);
    const bool back = !shown || revoked(peer);
    if (mapped && !outside) return false;
    return back || ((outside || status.life != PeerLife::kLive) &&
                    context_.environment.clock->now_ns() - begin_ns > kBoardDelayNs);
  };
  // std::ref, because a std::function with a copy of this lambda would allocate memory.
  if (shown || mapped) wait_for_peers(begin_ns + kReclaimTimeoutNs, std::ref(lets_go));
  if (!collective) return operation.exchange->give_up();
  if (shown) task->withdraw_output(true);
}

// Asks the peers of all `active` exchanges to stop writing to this rank's memory. Does not wait for their answers.
void FailedOperations::revoke_all(std::span<const std::shared_ptr<Operation>> active) const {
  for (const std::shared_ptr<Operation>& operation : active) {
    for (std::uint32_t peer = 0; operation->exchange != nullptr && peer < context_.ranks; ++peer) {
      static_cast<void>(operation->exchange->release_buffers(peer));
    }
  }
}

}  // namespace tutti
