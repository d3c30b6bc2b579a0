// The end of an operation: notifies its peers, and waits until its memory belongs to the caller again. Only the
// driver calls these functions.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "engine/engine.h"
#include "plan/collective.h"

namespace tutti {
namespace {

// Usual time until an action of a peer is visible on its board.
constexpr std::int64_t kBoardDelayNs = 100'000'000;
// Maximum wait for peers that may still write to the output of a failed call.
constexpr std::int64_t kReclaimTimeoutNs = 1'000'000'000;

}  // namespace

// Carries out the consequences of `result` for the peers, for the memory of the call and for its stream. Never
// throws. If a step fails, the operation fails and the communicator breaks, because the peers may not have been
// notified.
void Engine::finish(Operation& operation, Status result) noexcept {
  if (!result.ok())
    runs_through([&] { context_.environment.log.write(LogLevel::kInfo, "{}", to_string(result.error())); });
  const ErrorScope scope = result.ok() ? ErrorScope::kCall : result.error().scope;
  try {
    if (result.ok()) {
      conclude(operation);
    } else {
      abandon(operation, scope);
    }
  } catch (...) {
    const auto rank = static_cast<std::int32_t>(context_.rank);
    Error error = result.ok() ? error_of_exception(ErrorScope::kCommunicator, rank, "the end of a call")
                              : std::move(result).error();
    error.scope = std::max(error.scope, ErrorScope::kCommunicator);  // the next line makes the peers treat it as such
    result = std::move(error);
    state_.failure.announce_abort();
    runs_through([&] { abandon(operation, ErrorScope::kCommunicator); });
  }
  staged_.report_end(operation, result);
  runs_through([&] { recorder_.end(operation, result); });
  operation.result = std::move(result);
}

void Engine::conclude(Operation& operation) {
  if (operation.plan == nullptr) return;
  if (tasks_.running() != nullptr && tasks_.running()->shows_output()) tasks_.running()->withdraw_output(false);
  tasks_.conclude(operation.call.tag, has_root(operation.plan->shape.collective.kind));
}

void Engine::abandon(Operation& operation, ErrorScope scope) {
  if (operation.plan == nullptr) {
    if (operation.exchange != nullptr) reclaim_memory(operation, scope);
    return;
  }
  tasks_.note_failure(operation);
  if (operation.started && tasks_.running() != nullptr) reclaim_memory(operation, scope);
}

// After a failure of the operation: peers that are inside of it may have the address of this rank's memory, and may
// use it until they notice the failure or have agreed not to use it.
void Engine::reclaim_memory(Operation& operation, ErrorScope scope) {
  const bool collective = operation.plan != nullptr;
  const bool shown = !collective || (tasks_.running() != nullptr && tasks_.running()->shows_output());
  const bool mapped = collective && (operation.direct || operation.call.output_window.window != 0);
  const std::uint64_t sequence = operation.call.tag.sequence;
  std::int64_t begin_ns = context_.environment.clock->now_ns();
  const auto recalled = [&](std::uint32_t peer) {
    return collective ? tasks_.running()->revoke_output(peer) : operation.exchange->revoke_output(peer);
  };
  // Request it from all peers at once.
  for (std::uint32_t peer = 0; shown && peer < context_.ranks; ++peer) static_cast<void>(recalled(peer));
  if (scope >= ErrorScope::kConnection) {  // all operations in progress end, and wait together
    if (broken_since_ns_ == 0) {
      recall_all();
      broken_since_ns_ = begin_ns;
    }
    begin_ns = broken_since_ns_;
  }
  // A peer that aborts or leaves may still access this rank's memory for a moment, and its status arrives kBoardDelayNs
  // later.
  const auto lets_go = [&](std::uint32_t peer, const PeerStatus& status) {
    if (status.life == PeerLife::kLost || status.life == PeerLife::kUnreachable) return true;
    const bool outside = collective && (status.left >= sequence || status.entered < sequence);
    const bool back = !shown || recalled(peer);
    if (mapped && !outside) return false;
    return back || ((outside || status.life != PeerLife::kLive) &&
                    context_.environment.clock->now_ns() - begin_ns > kBoardDelayNs);
  };
  // std::ref, so that no memory is allocated.
  if (shown || mapped) wait_for_peers(begin_ns + kReclaimTimeoutNs, std::ref(lets_go));
  if (!collective) return operation.exchange->give_up();
  if (shown) tasks_.running()->withdraw_output(true);
}

void Engine::recall_all() {
  for (const std::shared_ptr<Operation>& operation : active_) {
    for (std::uint32_t peer = 0; operation->exchange != nullptr && peer < context_.ranks; ++peer) {
      static_cast<void>(operation->exchange->revoke_output(peer));
    }
  }
}

}  // namespace tutti
