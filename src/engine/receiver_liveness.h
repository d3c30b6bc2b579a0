// ReceiverLiveness: checks that the receivers of a call are alive when it starts. A short send fits into slots or
// socket buffers, so the sender does not wait for the receiver. Without the check, it would not notice that the
// receiver's process has exited, and the data would be lost without an error. The same is true for collectives in
// which some ranks only send, for example the root of a broadcast. If each rank needs data from all others
// (needs_all_ranks()), it waits for them, so no check is necessary.
//
// The check can be a system call, so a rank that was seen alive is not checked again for a while. The class has no
// threads or locks. Only the engine's driver uses it.
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

  // True if a short call by mailboxes must go through the queue now, because its receivers must be checked: this rank
  // only sends in a collective with a root, and the last check of all peers before a call by mailboxes is at least
  // kSeenLiveNs (receiver_liveness.cc) ago.
  bool check_is_due(const Collective& collective) const;
  // True if check() must be called when the operation starts: it is an exchange, or a collective in which not every
  // rank needs data from all others.
  static bool applies_to(const Operation& operation) {
    return operation.plan == nullptr || !needs_all_ranks(operation.plan->shape.collective.kind);
  }
  // Called when an operation has just started. If one of its receivers (for a call by mailboxes: one of the peers) no
  // longer takes part, returns the reason why the operation cannot complete. Otherwise returns nothing. `now_ns`: the
  // time of the start. Requires applies_to().
  std::optional<Diagnosis> check(const Operation& operation, std::int64_t now_ns);

 private:
  bool is_gone(std::uint32_t receiver, std::int64_t now_ns);
  bool any_peer_gone(std::int64_t now_ns);
  bool sends_to_gone_peer(const BoundPlan& plan, std::int64_t now_ns);

  const EngineContext& context_;
  // Indexed by peer: the start of the last operation for which this rank checked the peer and found it alive.
  std::vector<std::int64_t> seen_live_ns_;
  std::int64_t all_seen_ns_;  // the start of the last call by mailboxes for which this rank checked its peers
};

}  // namespace tutti
