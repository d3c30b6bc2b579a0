// FailedOperations: ends operations that failed. It notifies the peers, and waits (for a limited time) until they no
// longer use the memory of the operation, so that the caller may use or free that memory again. The class has no
// threads or locks. Only the engine's driver uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "engine/collective_tasks.h"
#include "engine/engine_state.h"
#include "engine/operation.h"

namespace tutti {

class FailedOperations {
 public:
  // All arguments must outlive this object.
  FailedOperations(const EngineContext& context, const FailureState& failure, CollectiveTasks& tasks)
      : context_(context), failure_(failure), tasks_(tasks) {}

  // If abort() was called on this rank, or if the engine is being destroyed, returns the kAborted error with which the
  // operation must end, and notifies the peers if it is a collective. Otherwise returns nothing.
  std::optional<Error> find_own_abort(const Operation& operation) const;
  // Makes the error with which the driver ends operations because of FailureState::abort() or abort_remaining(). Once
  // broken() is set, the driver ends the remaining operations with the error that broke the communicator instead.
  static Error aborted_error(const Call& call);
  // Notifies the peers that a collective has failed, and returns the error. For a mismatch, it first waits until all
  // live ranks have published their arguments, but at most for kAllEnterNs, and not longer than the operation's
  // deadline. The arguments of all ranks are needed to find a rank that differs from the majority. If there is a
  // majority, all ranks that get these arguments in time report the same culprit.
  Error give_up(const Operation& operation, Diagnosis diagnosis) const;
  // Waits, at most for kReclaimTimeoutNs, until no peer uses the memory of a failed operation any more, and ends its
  // exchange or the advertisement of its output. Records that a collective has failed. `scope`: the scope of the error.
  // `active`: the operations in progress, which all fail as well if the scope is kConnection or wider.
  void abandon(Operation& operation, ErrorScope scope, std::span<const std::shared_ptr<Operation>> active);

 private:
  using Condition = std::function<bool(std::uint32_t peer, const PeerStatus& status)>;
  void wait_for_peers(std::int64_t latest_ns, const Condition& wanted) const;
  void reclaim_memory(Operation& operation, ErrorScope scope, std::span<const std::shared_ptr<Operation>> active);
  void revoke_all(std::span<const std::shared_ptr<Operation>> active) const;

  const EngineContext& context_;
  const FailureState& failure_;
  CollectiveTasks& tasks_;
  // The time at which reclaim_memory() first ran for an error of scope kConnection or wider; 0 before.
  std::int64_t broken_since_ns_ = 0;
};

}  // namespace tutti
