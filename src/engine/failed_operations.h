// FailedOperations: the end of operations that failed. It notifies the peers, and waits until they no longer use the
// memory of the operation, so that the caller gets its memory back. It has no threads or locks. Only the engine's
// driver uses it.
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

  // Returns an error if abort() was called on this rank, and then notifies the peers.
  std::optional<Error> find_own_abort(const Operation& operation) const;
  // The error of an operation after abort() was called on this rank.
  static Error aborted_error(const Call& call);
  // Notifies the peers that a collective has failed, and returns the error. For a mismatch, it first waits for a
  // limited time until all ranks have published their arguments. Then the culprit can be determined best, and all
  // ranks report the same one.
  Error give_up(const Operation& operation, Diagnosis diagnosis) const;
  // Waits until the memory of a failed operation belongs to the caller again. `scope`: that of the error. `active`:
  // the operations in progress, which have failed as well if the scope is a connection or more.
  void abandon(Operation& operation, ErrorScope scope, std::span<const std::shared_ptr<Operation>> active);

 private:
  using Condition = std::function<bool(std::uint32_t peer, const PeerStatus& status)>;
  void wait_for_peers(std::int64_t latest_ns, const Condition& wanted) const;
  void reclaim_memory(Operation& operation, ErrorScope scope, std::span<const std::shared_ptr<Operation>> active);
  void revoke_all(std::span<const std::shared_ptr<Operation>> active) const;

  const EngineContext& context_;
  const FailureState& failure_;
  CollectiveTasks& tasks_;
  // When the first operation ended that broke the communicator; 0 if none has.
  std::int64_t broken_since_ns_ = 0;
};

}  // namespace tutti
