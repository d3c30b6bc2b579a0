#include "engine/failure_analyzer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/failure_text.h"

namespace tutti {

namespace {

bool contains(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) {
  return std::ranges::count(ranks, rank) > 0;
}

Diagnosis diagnosis(ErrorCode code, ErrorScope scope, std::int32_t culprit, std::string message,
                    CallArgument argument = CallArgument::kNone) {
  return {.error = {code, scope, culprit, std::move(message)},
          .failure = {.code = code, .culprit = culprit, .argument = argument}};
}

// Follows a text that ends with the number of a rank, for example "...: rank 3".
constexpr std::string_view kBadMemory =
    "'s input or output is not memory as long as the call says, or may not be written; give buffers that are, or set "
    "TUTTI_ATTACH=off for memory that the system lets nobody else use (a device's)";

// The error for a message with a wrong checksum: "all_reduce #42 (...): the checksum of message 17 ...". Its scope
// is the call.
Diagnosis damaged(const std::string& what, const BadMessage& message) {
  return diagnosis(
      ErrorCode::kDamaged, ErrorScope::kCall, static_cast<std::int32_t>(message.peer),
      fmt::format("{}: {}; memory, a cable or a device between these two ranks alters data: look for errors "
                  "of theirs in dmesg and in the counters of the network's ports",
                  what, message.damage));
}

// The error for memory of a peer that this rank could not map: "all_reduce #42 (...): this rank (1) has no view of
// memory that ...". Its scope is the call.
Diagnosis unmapped(const std::string& what, std::uint32_t rank, const BadMessage& message) {
  const Error error = error_of(message.loss, ErrorScope::kCall, message.peer, rank);
  return diagnosis(error.code, error.scope, error.rank, fmt::format("{}: {}", what, error.message),
                   message.loss.lacked);
}

}  // namespace

// Groups the ranks that have entered the call by the value that they passed for the first argument that differs. If
// more than half of them passed the same value, the culprit is the lowest rank with another value. Otherwise it is
// the lowest rank whose value differs from that of this rank. The message lists all values in both cases.
std::optional<Diagnosis> FailureAnalyzer::mismatch(const Call& call) const {
  std::vector<std::pair<std::uint32_t, CallTag>> tags;
  CallArgument argument = CallArgument::kNone;
  std::uint32_t differs = rank_;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const auto tag = rank == rank_ ? std::optional(call.tag) : transport_.peer_call(rank, call.tag.sequence);
    if (!tag) continue;
    tags.emplace_back(rank, *tag);
    const CallArgument difference = first_difference(call.tag, *tag);
    if (difference != CallArgument::kNone && (argument == CallArgument::kNone || difference < argument)) {
      argument = difference;
      differs = rank;
    }
  }
  if (argument == CallArgument::kNone) return std::nullopt;
  std::map<std::string, std::vector<std::uint32_t>> ranks_by_value;
  for (const auto& [rank, tag] : tags) ranks_by_value[describe(tag, argument)].push_back(rank);
  std::string text = fmt::format("{}: the ranks disagree:", describe(call.tag));
  const char* separator = "";
  for (const auto& [value, ranks] : ranks_by_value) {
    text += fmt::format("{} {} passed {}", std::exchange(separator, ","), rank_list(ranks), value);
    if (2 * ranks.size() <= tags.size()) continue;
    for (const auto& [rank, tag] : tags) {
      if (describe(tag, argument) == value) continue;
      differs = rank;
      break;
    }
  }
  std::vector<CallTag> passed;
  for (const auto& [rank, tag] : tags) passed.push_back(tag);
  text += advice(argument, passed);
  return diagnosis(ErrorCode::kMismatch, ErrorScope::kCall, static_cast<std::int32_t>(differs), std::move(text),
                   argument);
}

Diagnosis FailureAnalyzer::relayed(const Call& call, std::uint32_t peer, const CallFailure& failure) const {
  if (failure.code == ErrorCode::kMismatch) {
    if (auto seen = mismatch(call)) return *seen;
    return diagnosis(
        failure.code, ErrorScope::kCall, failure.culprit,
        fmt::format("{}: rank {} found that the ranks disagree{}; rank {} differs", describe(call.tag), peer,
                    failure.argument == CallArgument::kNone ? "" : " on " + describe(call.tag, failure.argument),
                    failure.culprit),
        failure.argument);
  }
  const bool lost = failure.code == ErrorCode::kPeerLost || failure.code == ErrorCode::kAborted;
  const bool own = failure.code == ErrorCode::kAborted && failure.culprit < 0;  // `peer` aborted, or its engine ended
  std::string text = fmt::format("{}: rank {} gave it up ({}{})", describe(call.tag), peer, to_string(failure.code),
                                 failure.culprit < 0 ? "" : fmt::format(", to blame: rank {}", failure.culprit));
  // On `peer`, bad_message() made this error, because memory of the culprit could not be read or written. Repeat
  // its explanation.
  if (failure.code == ErrorCode::kInvalidArgument && failure.culprit >= 0) {
    text += fmt::format(": rank {}{}", failure.culprit, kBadMemory);
  }
  if (failure.code == ErrorCode::kSystem) text += shortage(failure.argument);
  if (failure.code == ErrorCode::kPeerLost && failure.culprit == static_cast<std::int32_t>(peer)) {
    text += ": it can take part no more, and its own error says why";
  }
  std::string trouble;  // the problem of the connection between `peer` and this rank, if there is one
  if (failure.code == ErrorCode::kPeerLost && failure.culprit == static_cast<std::int32_t>(rank_)) {
    const std::string way = transport_.peer_path(peer);
    trouble = transport_.peer_trouble(peer);
    text += fmt::format(": it cannot reach this rank any more{}{}", way.empty() ? "" : " over " + way,
                        trouble.empty() ? "" : "; " + trouble);
  }
  if (failure.code == ErrorCode::kTimeout) {
    const PeerProgress peers = peer_progress(call);
    if (!peers.absent.empty()) text += fmt::format("; not entered by {}", rank_list(peers.absent));
    if (!peers.inside.empty()) text += fmt::format("; entered but not finished by {}", rank_list(peers.inside));
    // The connections of this rank may be the reason for the timeout of `peer`, and only this rank can describe
    // their problems.
    if (const std::string troubles = transport_.troubles(); !troubles.empty()) text += "; " + troubles;
  }
  return diagnosis(failure.code, lost ? ErrorScope::kCommunicator : ErrorScope::kCall,
                   own || !trouble.empty() ? static_cast<std::int32_t>(peer) : failure.culprit, std::move(text),
                   failure.argument);
}

Diagnosis FailureAnalyzer::gone(const std::string& what, std::uint32_t peer, PeerLife life) const {
  const auto because = [&](ErrorCode code, std::int32_t culprit, std::string_view text) {
    return diagnosis(code, ErrorScope::kCommunicator, culprit, fmt::format("{}: rank {} {}", what, peer, text));
  };
  const auto culprit = static_cast<std::int32_t>(peer);
  if (life == PeerLife::kAborted) {
    // If the last call of `peer` failed, that is why it has aborted, or why its communicator is broken.
    const auto last = failure_of(peer, transport_.peer_status(peer).left);
    // After a timeout without a culprit nobody knows the reason; other failures without one are those of `peer`.
    const bool by_itself =
        !last || last->culprit == culprit || (last->culprit < 0 && last->code != ErrorCode::kTimeout);
    if (!by_itself && last->code != ErrorCode::kMismatch) {
      const bool by_this_rank = last->culprit == static_cast<std::int32_t>(rank_);
      // As in relayed(): this rank is named, unless its own connection to `peer` has a problem.
      const bool cannot_reach =
          by_this_rank && last->code == ErrorCode::kPeerLost && !transport_.peer_trouble(peer).empty();
      const std::string blame =
          last->culprit < 0 ? "" : fmt::format(", to blame: {}rank {}", by_this_rank ? "this " : "", last->culprit);
      return because(
          last->code, cannot_reach ? culprit : last->culprit,
          fmt::format("makes no more calls, because its last one failed ({}{})", to_string(last->code), blame));
    }
    return because(ErrorCode::kAborted, culprit, "called abort(), or its communicator is broken: see its error");
  }
  const std::string loss = life == PeerLife::kUnreachable ? transport_.peer_trouble(peer)
                           : life == PeerLife::kLost      ? transport_.peer_loss(peer)
                                                          : "";
  if (life == PeerLife::kUnreachable || !loss.empty()) {
    return because(ErrorCode::kPeerLost, culprit, "cannot be reached any more: " + loss);
  }
  const bool left = life == PeerLife::kLeft;
  return because(ErrorCode::kPeerLost, culprit,
                 fmt::format("{} without finishing this call",
                             left ? "has destroyed its communicator" : "is gone: its process has ended"));
}

// The failure of call `sequence` that a peer reports on its board; nothing if there is none. A culprit that is not a
// rank of this communicator is replaced by -1, because Error::rank may be used as an index.
std::optional<CallFailure> FailureAnalyzer::failure_of(std::uint32_t peer, std::uint64_t sequence) const {
  auto failure = transport_.peer_failure(peer, sequence);
  if (failure && failure->culprit >= static_cast<std::int64_t>(ranks_)) failure->culprit = -1;
  if (failure) failure->culprit = std::max(failure->culprit, -1);
  return failure;
}

// Finds out why a peer makes no more calls: returns the failure of the last call that it left, if that failure
// broke its communicator and names another rank as the culprit. Otherwise returns nothing.
std::optional<CallFailure> FailureAnalyzer::reason_for_leaving(std::uint32_t peer, const PeerStatus& status) const {
  auto failure = failure_of(peer, status.left);
  if (!failure || failure->culprit < 0 || failure->culprit == static_cast<std::int32_t>(peer)) return std::nullopt;
  const bool broken = failure->code == ErrorCode::kPeerLost || failure->code == ErrorCode::kAborted;
  return broken ? failure : std::nullopt;
}

// If a rank has died, that is the cause of later actions of other ranks. So the reasons are ordered by priority:
// the causes come before their consequences.
std::optional<Diagnosis> FailureAnalyzer::look(const Call& call) const {
  if (auto disagreement = mismatch(call)) return disagreement;
  std::optional<Diagnosis> named;    // a peer failed this call, or broke in an earlier one, and named a culprit
  std::optional<Diagnosis> unnamed;  // a peer failed this call and named no culprit
  std::optional<std::pair<std::uint32_t, PeerLife>> lost;
  // a peer that has aborted (PeerLife::kAborted), or that left before it finished this call
  std::optional<std::pair<std::uint32_t, PeerLife>> gone_away;
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const PeerStatus status = transport_.peer_status(peer);
    if (const auto failure = failure_of(peer, call.tag.sequence)) {
      auto& reason = failure->culprit >= 0 ? named : unnamed;
      if (!reason) reason = relayed(call, peer, *failure);
    } else if ((status.life == PeerLife::kLost || status.life == PeerLife::kUnreachable) &&
               status.left < call.tag.sequence) {
      if (!lost || lost->second == PeerLife::kUnreachable) lost = {peer, status.life};
    } else if (const auto earlier = reason_for_leaving(peer, status); earlier && status.left < call.tag.sequence) {
      if (!named) named = relayed(call, peer, *earlier);
    } else if (status.life == PeerLife::kAborted ||
               (status.life == PeerLife::kLeft && status.left < call.tag.sequence)) {
      if (!gone_away || status.life == PeerLife::kAborted) gone_away = {peer, status.life};
    }
  }
  if (lost) return gone(describe(call.tag), lost->first, lost->second);
  if (named) return named;
  if (unnamed) return unnamed;
  if (gone_away) return gone(describe(call.tag), gone_away->first, gone_away->second);
  return std::nullopt;
}

// Returns the failure of a call after `call` that broke the communicator of `peer`, so that it sends nothing more.
// Returns nothing if there is none among the last kMostCalls calls of `peer`.
std::optional<CallFailure> FailureAnalyzer::later_failure(const Call& call, std::uint32_t peer) const {
  constexpr std::uint64_t kMostCalls = 64;  // limits the length of the search
  // Begins with the newest call, because boards keep only the newest failures.
  const std::uint64_t newest = transport_.peer_status(peer).entered;
  const std::uint64_t oldest = std::max(call.tag.sequence, newest - std::min(newest, kMostCalls));
  for (std::uint64_t sequence = newest; sequence > oldest; --sequence) {
    const auto failure = failure_of(peer, sequence);
    if (failure && (failure->code == ErrorCode::kPeerLost || failure->code == ErrorCode::kAborted)) return failure;
  }
  return std::nullopt;
}

std::optional<Diagnosis> FailureAnalyzer::find_lost_sender(const Call& call,
                                                           const std::vector<std::uint32_t>& awaited) const {
  for (const std::uint32_t peer : awaited) {
    if (peer >= ranks_ || peer == rank_) continue;
    const PeerStatus status = transport_.peer_status(peer);
    if (status.left < call.tag.sequence) continue;
    const auto failure = later_failure(call, peer);
    if (status.life == PeerLife::kLive && !failure) continue;
    std::string how = status.life == PeerLife::kLost ? transport_.peer_loss(peer) : "";
    if (how.empty()) how = "its process has ended";
    if (failure) {
      how = fmt::format("it has given up a later call ({}{})", to_string(failure->code),
                        failure->culprit < 0 ? "" : fmt::format(", to blame: rank {}", failure->culprit));
    } else if (status.life == PeerLife::kLeft) {
      how = "it has destroyed its communicator";
    }
    const std::string way = transport_.peer_path(peer);
    return diagnosis(
        ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(peer),
        fmt::format("{}: rank {} has finished this call and sends nothing more, because {}, but some of its data has "
                    "not arrived{}: the connection between rank {} and rank {} is broken",
                    describe(call.tag), peer, how, way.empty() ? "" : " over " + way, peer, rank_));
  }
  return std::nullopt;
}

Diagnosis FailureAnalyzer::bad_message(const Call& call, const BadMessage& message) const {
  if (message.kind == Arrival::kMismatch) {
    if (auto seen = mismatch(call)) return *seen;
    if (message.tag.sequence == 0) {
      return diagnosis(ErrorCode::kMismatch, ErrorScope::kCall, static_cast<std::int32_t>(message.peer),
                       fmt::format("{}: the ranks disagree: rank {} passed something else, and has made so many calls "
                                   "since that it no longer says what; give all ranks the same",
                                   describe(call.tag), message.peer));
    }
    const CallArgument argument = first_difference(call.tag, message.tag);
    return diagnosis(ErrorCode::kMismatch, ErrorScope::kCall, static_cast<std::int32_t>(message.peer),
                     fmt::format("{}: rank {} passed {}, this rank ({}) {}{}", describe(call.tag), message.peer,
                                 describe(message.tag, argument), rank_, describe(call.tag, argument),
                                 advice(argument, {{call.tag, message.tag}})),
                     argument);
  }
  if (message.kind == Arrival::kDamaged) return damaged(describe(call.tag), message);
  if (message.kind == Arrival::kUnmapped) return unmapped(describe(call.tag), rank_, message);
  if (message.kind == Arrival::kWithdrawn) {
    if (auto reason = look(call)) return *reason;
    return diagnosis(ErrorCode::kAborted, ErrorScope::kCall, static_cast<std::int32_t>(message.peer),
                     fmt::format("{}: rank {} gave it up", describe(call.tag), message.peer));
  }
  if (message.kind == Arrival::kUnreachable) {
    return diagnosis(ErrorCode::kInvalidArgument, ErrorScope::kCall, static_cast<std::int32_t>(message.peer),
                     fmt::format("{}: rank {}{}", describe(call.tag), message.peer, kBadMemory));
  }
  if (message.kind == Arrival::kForbidden) {
    return diagnosis(ErrorCode::kSystem, ErrorScope::kCall, -1,
                     fmt::format("{}: the system does not let this rank ({}) use rank {}'s memory, as it did at "
                                 "set-up: has one of them given up rights since? Set TUTTI_ATTACH=off",
                                 describe(call.tag), rank_, message.peer));
  }
  return diagnosis(
      ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(message.peer),
      fmt::format("{}: rank {} sent a message that its plan does not contain", describe(call.tag), message.peer));
}

FailureAnalyzer::PeerProgress FailureAnalyzer::peer_progress(const Call& call) const {
  PeerProgress peers;
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const PeerStatus status = transport_.peer_status(peer);
    auto& list = status.left >= call.tag.sequence      ? peers.finished
                 : status.ended                        ? peers.ended
                 : status.cut                          ? peers.cut
                 : status.entered >= call.tag.sequence ? peers.inside
                                                       : peers.absent;
    list.push_back(peer);
  }
  return peers;
}

FailureAnalyzer::FurthestBehind FailureAnalyzer::furthest_behind(const std::vector<std::uint32_t>& absent) const {
  // How far a peer has got: 2 * the number of calls that it has entered and left again, plus 1 if it is inside the
  // next call.
  const auto place = [&](std::uint32_t peer) {
    const PeerStatus status = transport_.peer_status(peer);
    return status.entered > status.left ? 2 * status.entered - 1 : 2 * status.left;
  };
  std::vector<std::uint32_t> last;
  std::uint64_t least = ~std::uint64_t{0};
  for (const std::uint32_t peer : absent) {
    const std::uint64_t at = place(peer);
    if (at < least) last.clear();
    least = std::min(least, at);
    if (at == least) last.push_back(peer);
  }
  return {.ranks = std::move(last), .inside_a_call = least % 2 != 0};
}

// Returns the rank that the others wait for, as far as the boards show, or -1 if no single one can be named. A peer
// that this rank waits for, and whose process or connection has ended, comes first, and then the rank that is furthest
// behind. Of several ranks that are equally far behind, ranks inside an earlier call may themselves wait for the
// missing rank, so none is named. Ranks between two calls wait for no other rank, so one of them can be named.
// Over a network, a rank that waits reports it soon, but one that has finished without waiting reports nothing. So if
// exactly one rank that this rank waits for is silent, it is named before ranks for which this rank does not wait.
std::int32_t FailureAnalyzer::missing_rank(const Call& call, const PeerProgress& peers,
                                           const std::vector<std::uint32_t>& waited) const {
  const auto is_waited = [&](std::uint32_t peer) { return contains(waited, peer); };
  std::vector<std::uint32_t> silent = waited;
  std::erase_if(silent, [&](std::uint32_t peer) {
    const PeerStatus status = transport_.peer_status(peer);
    const bool waits = status.reported > status.left && status.reported >= status.entered;
    const bool has_given_up = status.entered == status.left && failure_of(peer, status.left);  // it is not silent
    return peer == rank_ || !status.is_sent || waits || has_given_up || status.left >= call.tag.sequence;
  });
  const std::int32_t cause = silent.size() == 1 ? static_cast<std::int32_t>(silent.front()) : -1;
  for (const auto* parted : {&peers.ended, &peers.cut}) {
    const auto found = std::ranges::find_if(*parted, is_waited);
    if (found != parted->end()) return static_cast<std::int32_t>(*found);
  }
  if (peers.absent.empty()) {
    // All ranks have entered the call, except for those whose process or connection has ended. A rank that has finished
    // it has sent its data. Either the data does not arrive, or that rank has given up and the notification does not
    // arrive. With shared memory nothing can be lost in between, so the rank is named.
    const auto sent = std::find_if(peers.finished.begin(), peers.finished.end(), is_waited);
    if (sent != peers.finished.end()) return transport_.shares_memory() ? static_cast<std::int32_t>(*sent) : -1;
    return cause < 0 && peers.inside.size() == 1 ? static_cast<std::int32_t>(peers.inside.front()) : cause;
  }
  auto [last, inside_a_call] = furthest_behind(peers.absent);
  if (last.size() == 1) {
    const bool is_sure = is_waited(last.front()) || !transport_.peer_status(last.front()).is_sent;
    return is_sure || cause < 0 ? static_cast<std::int32_t>(last.front()) : cause;
  }
  if (inside_a_call) return -1;
  if (transport_.shares_memory()) return static_cast<std::int32_t>(last.front());
  // Several ranks are missing in the first call. They may all still be in set-up, for example because the process that
  // runs the rendezvous server is stopped. So name none of them.
  if (call.tag.sequence == 1) return -1;
  // Without shared memory, the board of a rank that has sent nothing to this rank yet can be out of date. So keep
  // only the ranks that this rank waits for.
  std::erase_if(last, [&](std::uint32_t peer) { return !is_waited(peer); });
  return last.size() == 1 ? static_cast<std::int32_t>(last.front()) : -1;
}

// Lists the peers by their progress in the call. Then names the events for which this rank waits. For example
// "not entered by rank 1; this rank (0) waits at ...".
std::string FailureAnalyzer::describe_wait(const PeerProgress& peers, CollectiveTask& running,
                                           std::string_view hint) const {
  const auto& [absent, inside, finished, ended, cut] = peers;
  std::string text;
  if (!absent.empty()) text += fmt::format("not entered by {}; ", rank_list(absent));
  if (!inside.empty()) text += fmt::format("entered but not finished by {}; ", rank_list(inside));
  if (!finished.empty()) text += fmt::format("finished by {}; ", rank_list(finished));
  if (!ended.empty()) text += fmt::format("{} ended before or in it; ", rank_list(ended));
  if (!cut.empty()) text += fmt::format("a connection to {} ended, and it is not known yet why; ", rank_list(cut));
  text += fmt::format("this rank ({}) waits at {}", rank_, running.waits_for());
  if (const std::string troubles = transport_.troubles(); !troubles.empty()) text += "; " + troubles;
  if (!absent.empty() && !hint.empty()) text += fmt::format("; {}", hint);
  return text;
}

Diagnosis FailureAnalyzer::timed_out(const Call& call, std::int64_t timeout_ms, CollectiveTask& running,
                                     std::string_view hint) const {
  const PeerProgress peers = peer_progress(call);
  return diagnosis(ErrorCode::kTimeout, ErrorScope::kCall, missing_rank(call, peers, running.waits_for_ranks()),
                   fmt::format("{} made no progress for {} ms: {}", describe(call.tag), timeout_ms,
                               describe_wait(peers, running, hint)));
}

std::string FailureAnalyzer::late(const Call& call, std::int64_t waited_s, CollectiveTask& running,
                                  std::string_view hint) const {
  const PeerProgress peers = peer_progress(call);
  const std::vector<std::uint32_t> waited = running.waits_for_ranks();
  std::vector<std::uint32_t> late = furthest_behind(peers.absent).ranks;
  // Without shared memory, the boards of other ranks can be out of date; see missing_rank().
  if (!transport_.shares_memory()) std::erase_if(late, [&](std::uint32_t peer) { return !contains(waited, peer); });
  return fmt::format("{}: waited {} s for {}: {}", describe(call.tag), waited_s,
                     late_ranks(late.empty() ? waited : late), describe_wait(peers, running, hint));
}

std::optional<Diagnosis> FailureAnalyzer::look(const Exchange& exchange) const {
  const std::vector<const Transfer*> open = exchange.unfinished();
  // A probe (next_sender()) waits for a message from any of its peers. So it continues if some of them have left
  // normally, or may have left normally, until all of them have.
  const auto left = [](const PeerStatus& status) {
    return status.life == PeerLife::kLeft || (status.life == PeerLife::kLost && status.ended);
  };
  const auto peer_left = [&](const Transfer* transfer) { return left(transport_.peer_status(transfer->peer)); };
  const bool others_may_send = exchange.probes() && !std::all_of(open.begin(), open.end(), peer_left);
  for (const Transfer* transfer : open) {
    const PeerStatus status = transport_.peer_status(transfer->peer);
    if (others_may_send && left(status)) continue;
    // Data that a peer sent before it left may still be in transit. Such a transfer is not stalled: it ends when
    // the data arrives, or at the deadline.
    if (status.life == PeerLife::kAborted || (status.life != PeerLife::kLive && exchange.stalled(*transfer))) {
      Diagnosis diagnosis = gone(describe(*transfer), transfer->peer, status.life);
      diagnosis.error.message += "; this rank waits for " + exchange.waits_for();
      return diagnosis;
    }
  }
  return std::nullopt;
}

std::optional<Diagnosis> FailureAnalyzer::look_before(const Transfer& send) const {
  const PeerLife life = transport_.peer_status(send.peer).life;
  return life == PeerLife::kLive ? std::nullopt : std::optional(gone(describe(send), send.peer, life));
}

Diagnosis FailureAnalyzer::bad_transfer(const Exchange& exchange) const {
  const Transfer& transfer = *exchange.bad_transfer();
  const BadMessage message = *exchange.bad_message();
  const auto culprit = static_cast<std::int32_t>(transfer.peer);
  if (message.kind == Arrival::kMismatch) {
    const CallArgument argument = first_difference(transfer.tag, message.tag);
    return diagnosis(
        ErrorCode::kMismatch, ErrorScope::kCall, culprit,
        fmt::format("{}: rank {} sends {}, this rank ({}) expects {}; give both the same", describe(transfer),
                    transfer.peer, describe(message.tag, argument), rank_, describe(transfer.tag, argument)),
        argument);
  }
  if (message.kind == Arrival::kDamaged) return damaged(describe(transfer), message);
  if (message.kind == Arrival::kUnmapped) return unmapped(describe(transfer), rank_, message);
  return diagnosis(
      ErrorCode::kRefused, ErrorScope::kCommunicator, culprit,
      fmt::format("{}: rank {} sent a message that no sound peer sends", describe(transfer), transfer.peer));
}

void FailureAnalyzer::escalate_half_moved(const Exchange& exchange, Error& error) {
  const Transfer* const transfer = exchange.half_moved();
  if (transfer == nullptr || error.scope >= ErrorScope::kConnection) return;
  error.scope = ErrorScope::kConnection;
  error.message += fmt::format(
      "; only a part of {} has moved, so later transfers of the two ranks may not match: make a new communicator",
      describe(*transfer));
}

Diagnosis FailureAnalyzer::timed_out(const Exchange& exchange, std::int64_t timeout_ms) const {
  const std::vector<std::uint32_t> peers = unfinished_peers(exchange);
  return diagnosis(ErrorCode::kTimeout, ErrorScope::kCall, peers.size() == 1 ? static_cast<std::int32_t>(peers[0]) : -1,
                   fmt::format("{} made no progress for {} ms: {}", describe_unfinished(exchange), timeout_ms,
                               describe_wait(exchange)));
}

std::string FailureAnalyzer::late(const Exchange& exchange, std::int64_t waited_s) const {
  return fmt::format("{}: waited {} s for {}: {}", describe_unfinished(exchange), waited_s,
                     late_ranks(unfinished_peers(exchange)), describe_wait(exchange));
}

std::string FailureAnalyzer::describe_wait(const Exchange& exchange) const {
  const std::string troubles = transport_.troubles();
  return fmt::format("this rank ({}) waits for {}{}{}", rank_, exchange.waits_for(), troubles.empty() ? "" : "; ",
                     troubles);
}

}  // namespace tutti
