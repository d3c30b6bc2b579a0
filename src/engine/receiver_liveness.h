// ReceiverLiveness: checks that the receivers of a call are alive when it starts. A short send fits into slots or
// socket buffers, so this rank does not wait for the receiver and would not notice that the receiver's process has
// exited: the data would be lost without an error. The same is true for a collective with a root, in which some ranks
// only send. In all other collectives each rank waits for the others, so they need no check.
//
// The check is a system call, so a rank that was seen alive is not checked again for a while. The class has no threads
// or locks. Only the engine's driver uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine_state.h"
#include "engine/operation.h"
#include "plan/collective.h"

namespace tutti {

class ReceiverLiveness {
 public:
  // `context` must outlive this object.
  explicit ReceiverLiveness(const EngineContext& context);

  // True if a short call of this collective must go through the queue, because its receivers must be checked. That is
  // necessary only for a rank that merely sends in a collective with a root, because that rank would not notice a dead
  // receiver.
  bool check_is_due(const Collective& collective) const;
  // True if the receivers of the operation must be checked when it starts.
  static bool applies_to(const Operation& operation) {
    return operation.plan == nullptr || !needs_all_ranks(operation.plan->shape.collective.kind);
  }
  // Returns the failure of an operation that has just started, if one of its receivers no longer takes part. `now_ns`:
  // the time of the start. Requires applies_to().
  std::optional<Diagnosis> check(const Operation& operation, std::int64_t now_ns);

 private:
  bool is_gone(std::uint32_t receiver, std::int64_t now_ns);
  bool any_peer_gone(std::int64_t now_ns);
  bool sends_to_gone_peer(const BoundPlan& plan, std::int64_t now_ns);

  const EngineContext& context_;
  // Indexed by peer: when this rank last saw, before a send, that the peer is alive.
  std::vector<std::int64_t> seen_live_ns_;
  std::int64_t all_seen_ns_;  // when it checked all peers before a call by mailboxes
};

}  // namespace tutti
