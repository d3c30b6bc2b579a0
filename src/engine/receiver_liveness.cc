#include "engine/receiver_liveness.h"

#include <limits>

#include "base/collective_table.h"

namespace tutti {
namespace {

// A receiver that was seen alive is not checked again before this time has passed.
constexpr std::int64_t kSeenLiveNs = 100'000'000;
// Stands for "not checked yet". Earlier than any time that a clock returns.
constexpr std::int64_t kNeverNs = std::numeric_limits<std::int64_t>::min() / 2;

}  // namespace

ReceiverLiveness::ReceiverLiveness(const EngineContext& context)
    : context_(context), seen_live_ns_(context.ranks, kNeverNs), all_seen_ns_(kNeverNs) {}

bool ReceiverLiveness::check_is_due(const Collective& collective) const {
  if (!has_root(collective.kind)) return false;
  const bool from_root = row_of(collective.kind).root == RootHas::kTheInput;
  const bool only_sends = (context_.rank == collective.root) == from_root;
  return only_sends && context_.environment.clock->now_ns() - all_seen_ns_ >= kSeenLiveNs;
}

std::optional<Diagnosis> ReceiverLiveness::check(const Operation& operation, std::int64_t now_ns) {
  if (operation.plan == nullptr) {
    for (const Transfer& transfer : operation.exchange->transfers()) {
      if (transfer.direction != Direction::kSend || !is_gone(transfer.peer, now_ns)) continue;
      if (auto diagnosis = context_.analyzer().look_before(transfer)) return diagnosis;
    }
    return std::nullopt;
  }
  const bool gone = operation.by_mailbox ? any_peer_gone(now_ns) : sends_to_gone_peer(*operation.plan, now_ns);
  return gone ? context_.analyzer().look(operation.call) : std::nullopt;
}

bool ReceiverLiveness::is_gone(std::uint32_t receiver, std::int64_t now_ns) {
  std::int64_t& seen_ns = seen_live_ns_[receiver];
  if (now_ns - seen_ns < kSeenLiveNs) return false;
  if (context_.transport.peer_status(receiver).life != PeerLife::kLive) return true;
  seen_ns = now_ns;
  return false;
}

// For calls by mailboxes, which have no connections that name the receivers. Either all ranks read the root's
// mailbox, or the root reads the mailboxes of all ranks. This function checks every peer in both cases. Returns
// true if some peer does not take part any more.
bool ReceiverLiveness::any_peer_gone(std::int64_t now_ns) {
  all_seen_ns_ = now_ns;
  for (std::uint32_t peer = 0; peer < context_.ranks; ++peer) {
    if (peer != context_.rank && is_gone(peer, now_ns)) return true;
  }
  return false;
}

bool ReceiverLiveness::sends_to_gone_peer(const BoundPlan& plan, std::int64_t now_ns) {
  for (const Channel& channel : plan.program.channels) {
    for (const Port& port : channel.ports) {
      if (port.direction == Direction::kSend && is_gone(port.peer, now_ns)) return true;
    }
  }
  return false;
}

}  // namespace tutti
