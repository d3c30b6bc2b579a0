#include "membership/consensus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/assert.h"

namespace tutti::detail {
namespace {

// Maximum number of coordinator candidates: each participant sends kJoin to the lowest live ranks below it, at most to
// this many. Normally at most as many members forward a decision. So if one or two of three candidates die during the
// protocol, another one is left.
constexpr std::uint32_t kCoordinatorCandidates = 3;
// Number of past decisions that a rank keeps for ranks that have missed them.
constexpr std::size_t kKeptDecisions = 16;
// kJoin is sent again every timeout / kJoinsPerTimeout, or every kMaxJoinIntervalNs if that is shorter.
constexpr std::int64_t kJoinsPerTimeout = 8;
constexpr std::int64_t kMaxJoinIntervalNs = 250'000'000;
constexpr std::int64_t kSuspectedTimeoutNs = 100'000'000;  // how long the coordinator awaits kJoin of a suspected rank
constexpr std::int64_t kTimeoutsPerAttempt = 4;            // number of timeouts after which an attempt fails
// Maximum number of ranks that an error message lists.
constexpr std::size_t kMaxNamedRanks = 16;

std::uint32_t coordinator_of(std::uint64_t ballot) { return static_cast<std::uint32_t>(ballot & 0xffff); }

}  // namespace

Consensus::Consensus(std::uint32_t rank, std::uint32_t ranks, ConsensusMessenger& messenger)
    : rank_(rank), ranks_(ranks), messenger_(messenger), peers_(ranks) {
  TUTTI_ASSERT(rank < ranks && ranks <= 65'536);
}

void Consensus::begin(const ConsensusVote& vote, const std::vector<bool>& suspected, std::int64_t timeout_ns,
                      std::int64_t now_ns) {
  TUTTI_ASSERT(suspected.size() == ranks_ && timeout_ns > 0);
  peers_.assign(ranks_, {.last_heard_ns = now_ns});
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) peers_[peer].suspected = suspected[peer];
  outcome_.reset();
  vote_ = vote;
  timeout_ns_ = timeout_ns;
  began_ns_ = now_ns;
  coordinator_since_ns_.reset();
  followed_coordinator_.reset();
  phase_ = Phase::kIdle;
}

bool Consensus::step(std::int64_t now_ns) {
  for (std::uint32_t peer = 0; peer < ranks_ && !outcome_; ++peer) {
    if (peer == rank_) continue;
    // Check for the exit before reading the messages: if the peer exits in between, the messages that it sent
    // before its exit must still be read in the next step.
    const bool ended = messenger_.gone(peer);
    receive_from(peer, now_ns);
    // A closed connection proves an exit only if there was a connection in this attempt: the peer has joined, or
    // this rank has sent kJoin to a lower peer. `ever_joined` and not `joined`, because the coordinator clears `joined`
    // when a member dies before it accepts, and must still know in the next step that the member is dead.
    PeerState& state = peers_[peer];
    state.dead =
        ended && (messenger_.always_reachable(peer) || state.ever_joined || (peer < rank_ && state.join_sent_ns != 0));
  }
  if (!outcome_ && !contact_candidates(now_ns)) {
    if (!coordinator_since_ns_) coordinator_since_ns_ = now_ns;
    run_coordinator(now_ns);
  }
  if (!outcome_ && now_ns - began_ns_ > kTimeoutsPerAttempt * timeout_ns_) outcome_ = timed_out(now_ns);
  return outcome_.has_value();
}

void Consensus::send(std::uint32_t peer, Header header, const std::vector<bool>& bits) {
  header.epoch = header.type == MessageType::kDecided ? header.epoch : epoch_;
  std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
  std::string row((ranks_ + 7) / 8, '\0');
  for (std::uint32_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) row[i / 8] = static_cast<char>(row[i / 8] | (1 << (i % 8)));
  }
  messenger_.send(peer, message + row);
}

void Consensus::receive_from(std::uint32_t peer, std::int64_t now_ns) {
  // Messages that follow the outcome normally belong to the next instance or attempt. They stay in the queue until the
  // next begin().
  while (!outcome_) {
    const auto message = messenger_.take(peer);
    if (!message) return;
    Header header;
    if (message->size() != sizeof(header) + (ranks_ + 7) / 8) continue;
    std::memcpy(&header, message->data(), sizeof(header));
    std::vector<bool> bits(ranks_);
    for (std::uint32_t i = 0; i < ranks_; ++i) {
      bits[i] = ((static_cast<unsigned char>((*message)[sizeof(header) + i / 8]) >> (i % 8)) & 1) != 0;
    }
    handle(peer, header, bits, now_ns);
  }
}

void Consensus::handle(std::uint32_t peer, const Header& header, const std::vector<bool>& bits, std::int64_t now_ns) {
  PeerState& from = peers_[peer];
  from.last_heard_ns = now_ns;
  if (peer < rank_) from.dropped = false;
  if (header.epoch != epoch_) return answer_other_epoch(peer, header);
  const bool of_ballot = phase_ != Phase::kIdle && header.ballot == ballot_;
  const ConsensusDecision received{.members = bits, .operation = header.operation, .value = header.value};
  switch (header.type) {
    case MessageType::kJoin:
      from.joined = from.ever_joined = true;
      from.dropped = false;
      from.vote = {header.operation, header.value};
      for (std::uint32_t i = 0; i < ranks_; ++i) peers_[i].suspected = peers_[i].suspected || bits[i];
      // Confirm that this rank is running, so that the sender does not give it up as a candidate.
      return send(peer, {.type = MessageType::kJoinAck});
    case MessageType::kJoinAck: return;
    case MessageType::kPromise:
      if (!of_ballot || phase_ != Phase::kPrepareSent) return;
      from.promised = true;
      if (header.accepted > best_promised_.ballot) best_promised_ = {header.accepted, received};
      return;
    case MessageType::kAccepted:
      if (of_ballot && phase_ == Phase::kAcceptSent) from.has_accepted = true;
      return;
    case MessageType::kReject:
      // The participant has promised a higher ballot to another coordinator. Promise that ballot too, and so follow
      // that coordinator.
      if (phase_ != Phase::kIdle && header.ballot > ballot_) {
        promise(coordinator_of(header.ballot), header.ballot, now_ns);
      }
      return;
    case MessageType::kPrepare:
    case MessageType::kAcceptRequest:
    case MessageType::kDecided: return handle_as_participant(peer, header, received, now_ns);
  }
}

void Consensus::handle_as_participant(std::uint32_t peer, const Header& header, const ConsensusDecision& received,
                                      std::int64_t now_ns) {
  if (header.type == MessageType::kDecided) return decide(received, peer);
  // Ignore a message if its sender is not the coordinator of its ballot.
  if (coordinator_of(header.ballot) != peer) return;
  if (!promise(peer, header.ballot, now_ns)) return send(peer, {.type = MessageType::kReject, .ballot = promised_});
  if (header.type == MessageType::kPrepare) {
    const ConsensusDecision& proposal = accepted_.proposal;
    return send(peer,
                {.type = MessageType::kPromise,
                 .ballot = header.ballot,
                 .accepted = accepted_.ballot,
                 .operation = proposal.operation,
                 .value = proposal.value},
                proposal.members);
  }
  accepted_ = {header.ballot, received};
  bound_ = true;
  send(peer, {.type = MessageType::kAccepted, .ballot = header.ballot});
}

// Handles a message of another instance. Ignores kPromise, kReject, kAccepted and kDecided. If the sender is ahead,
// this rank has missed a decision: send kJoin, which the sender answers with that decision, if it still has it. If the
// sender is behind and has sent a message that needs an answer, send it the decision that it has missed, if this rank
// still has it.
void Consensus::answer_other_epoch(std::uint32_t peer, const Header& header) {
  const bool wants_answer = header.type == MessageType::kJoin || header.type == MessageType::kPrepare ||
                            header.type == MessageType::kAcceptRequest;
  if (!wants_answer && header.type != MessageType::kJoinAck) return;
  if (header.epoch > epoch_) return send_join(peer, peers_[peer].last_heard_ns);
  const auto found = decided_.find(header.epoch);
  if (!wants_answer || found == decided_.end()) return;
  const ConsensusDecision& decision = found->second;
  send(peer,
       {.type = MessageType::kDecided, .epoch = found->first, .operation = decision.operation, .value = decision.value},
       decision.members);
}

// Promises `peer` to ignore all ballots below `ballot`. If this rank was the coordinator, it becomes a participant.
// Returns false, without a promise, if this rank has promised a higher ballot already, or if `peer` is not another
// rank.
bool Consensus::promise(std::uint32_t peer, std::uint64_t ballot, std::int64_t now_ns) {
  if (ballot < promised_ || peer >= ranks_ || peer == rank_) return false;
  promised_ = ballot;
  last_round_ = std::max(last_round_, ballot >> 16);
  phase_ = Phase::kIdle;
  if (peer > rank_) {
    followed_coordinator_ = peer;
    peers_[peer].last_heard_ns = now_ns;
  }
  return true;
}

void Consensus::send_join(std::uint32_t peer, std::int64_t now_ns) {
  peers_[peer].join_sent_ns = now_ns;
  std::vector<bool> suspected(ranks_);
  for (std::uint32_t i = 0; i < ranks_; ++i) suspected[i] = peers_[i].suspected || peers_[i].dead;
  send(peer, {.type = MessageType::kJoin, .operation = vote_.operation, .value = vote_.value}, suspected);
}

// Sends kJoin, if it is due, to the coordinator candidates, or to the coordinator that this rank follows. Returns false
// if there is none, because all lower ranks are dead or dropped. This rank must then be the coordinator.
bool Consensus::contact_candidates(std::int64_t now_ns) {
  const std::int64_t every_ns = std::min(timeout_ns_ / kJoinsPerTimeout, kMaxJoinIntervalNs);
  std::uint32_t candidates = 0;
  const auto visit = [&](std::uint32_t peer) {
    PeerState& candidate = peers_[peer];
    if (candidate.join_sent_ns == 0) candidate.last_heard_ns = now_ns;
    if (candidate.join_sent_ns == 0 || now_ns - candidate.join_sent_ns >= every_ns) send_join(peer, now_ns);
    ++candidates;
  };
  if (followed_coordinator_) {
    if (!peers_[*followed_coordinator_].dead && !silent(peers_[*followed_coordinator_], now_ns) &&
        can_reach(*followed_coordinator_)) {
      visit(*followed_coordinator_);
      return true;
    }
    followed_coordinator_.reset();
  }
  for (std::uint32_t peer = 0; peer < rank_ && candidates < kCoordinatorCandidates; ++peer) {
    PeerState& candidate = peers_[peer];
    // The timeout of a candidate starts with the candidate's last message or, if that is later, with this rank's
    // begin() or first kJoin to the candidate. So all ranks give up a silent candidate at approximately the same time.
    const std::int64_t since_ns = std::max(candidate.last_heard_ns, began_ns_);
    if (candidate.join_sent_ns != 0 && now_ns - since_ns > timeout_ns_) candidate.dropped = true;
    if (!candidate.dead && !candidate.dropped) visit(peer);
  }
  return candidates > 0;
}

// One step of the coordinator. If a phase succeeds, the next phase starts in the same call.
void Consensus::run_coordinator(std::int64_t now_ns) {
  if (phase_ == Phase::kIdle && all_joined(now_ns)) send_prepare(now_ns);
  if (phase_ == Phase::kPrepareSent) count_promises(now_ns);
  if (phase_ == Phase::kAcceptSent) count_acceptances(now_ns);
}

// Whether the coordinator need not wait for further ranks to join: each other rank has joined, is dead or dropped,
// or has not joined in time.
bool Consensus::all_joined(std::int64_t now_ns) const {
  // If this rank became the coordinator late, the other ranks get at least a quarter of the timeout to join, because
  // they need time to notice that the previous coordinator has failed.
  const std::int64_t until_ns = std::max(began_ns_ + timeout_ns_, *coordinator_since_ns_ + timeout_ns_ / 4);
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    const PeerState& state = peers_[peer];
    if (peer == rank_ || state.dead || state.dropped || state.joined) continue;
    const bool over = now_ns >= until_ns || (state.suspected && now_ns >= began_ns_ + kSuspectedTimeoutNs);
    if (!over) return false;
  }
  return true;
}

void Consensus::send_prepare(std::int64_t now_ns) {
  ballot_ = (++last_round_ << 16) | rank_;
  promised_ = ballot_;
  phase_ = Phase::kPrepareSent;
  phase_since_ns_ = now_ns;
  // If bound_ is false, accepted_ is empty, or a proposal of this rank that only this rank could have decided, and it
  // has not. So the new ballot need not repeat it.
  best_promised_ = bound_ ? accepted_ : AcceptedProposal();
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    PeerState& participant = peers_[peer];
    participant.promised = participant.has_accepted = false;
    participant.prepare_sent = peer != rank_ && participant.joined && !participant.dead && !participant.dropped;
    if (participant.prepare_sent) send(peer, {.type = MessageType::kPrepare, .ballot = ballot_});
  }
}

// Makes the proposal when all ranks to which kPrepare was sent have promised. Ranks that have died or were silent for
// the timeout are not waited for. They are not members of a proposal that this rank makes itself, but may be members of
// one that it adopts (propose()).
void Consensus::count_promises(std::int64_t now_ns) {
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    PeerState& participant = peers_[peer];
    if (!participant.prepare_sent || participant.promised) continue;
    if (participant.dead) {
      participant.prepare_sent = false;
    } else if (now_ns - phase_since_ns_ > timeout_ns_ && silent(participant, now_ns)) {
      participant.prepare_sent = participant.joined = false;
      participant.dropped = true;
    } else {
      return;
    }
  }
  propose(now_ns);
}

void Consensus::propose(std::int64_t now_ns) {
  phase_ = Phase::kAcceptSent;
  phase_since_ns_ = now_ns;
  // Whether this rank may choose the members. It may if no accepted proposal is known. It may also replace the accepted
  // proposal with the highest ballot if that proposal is its own (bound_ is false), because no other rank can have
  // decided it, and this rank has not.
  const bool own = best_promised_.ballot == 0 || (!bound_ && coordinator_of(best_promised_.ballot) == rank_);
  if (own) {
    proposal_ = {std::vector<bool>(ranks_), vote_.operation, vote_.value};
    proposal_.members[rank_] = true;
    for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
      const PeerState& participant = peers_[peer];
      if (!participant.prepare_sent || participant.dead) continue;
      proposal_.members[peer] = true;
      proposal_.operation = std::min(proposal_.operation, participant.vote.operation);
      proposal_.value = std::min(proposal_.value, participant.vote.value);
    }
  } else {
    proposal_ = best_promised_.proposal;
    bound_ = true;
  }
  accepted_ = {ballot_, proposal_};
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || !proposal_.members[peer] || peers_[peer].dead || !can_reach(peer)) continue;
    send(peer,
         {.type = MessageType::kAcceptRequest,
          .ballot = ballot_,
          .operation = proposal_.operation,
          .value = proposal_.value},
         proposal_.members);
  }
}

// Decides when all live members have accepted. If a member dies or falls silent before it has accepted, the
// behavior depends on bound_. This rank's own proposal is replaced by one without that member, in a new ballot. An
// adopted proposal (bound_) must stay as it is, because another coordinator may have decided it already. Its dead
// members are then not waited for, but its silent members are.
void Consensus::count_acceptances(std::int64_t now_ns) {
  bool all = true;
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || !proposal_.members[peer]) continue;
    PeerState& member = peers_[peer];
    if (member.has_accepted) continue;
    const bool stuck = !member.dead && now_ns - phase_since_ns_ > timeout_ns_ && silent(member, now_ns);
    if (!bound_ && (member.dead || stuck)) {
      member.joined = false;
      member.dropped = member.dropped || stuck;
      phase_ = Phase::kIdle;
      return;
    }
    all = all && member.dead;
  }
  if (all) decide(proposal_, rank_);
}

void Consensus::decide(const ConsensusDecision& decision, std::uint32_t from) {
  decided_[epoch_] = decision;
  while (decided_.size() > kKeptDecisions) decided_.erase(decided_.begin());
  const Header header{
      .type = MessageType::kDecided, .epoch = epoch_, .operation = decision.operation, .value = decision.value};
  // Number of members below this rank, without the sender. The lowest members forward the decision. So this rank does
  // so only if this number is small.
  std::uint32_t before = 0;
  for (std::uint32_t peer = 0; peer < rank_; ++peer) before += decision.members[peer] && peer != from ? 1 : 0;
  const bool passes_on = from == rank_ || before < kCoordinatorCandidates;
  for (std::uint32_t peer = 0; peer < ranks_ && passes_on; ++peer) {
    // The rank that has decided also sends the decision to ranks that are not members, and a rank that forwards it does
    // so to those that have joined. A rank that is not a member was believed dead or was silent, and might otherwise go
    // on with an older proposal that it has accepted.
    const bool concerned = from == rank_ || decision.members[peer] || peers_[peer].ever_joined;
    if (peer == rank_ || peer == from || !concerned || peers_[peer].dead || !can_reach(peer)) continue;
    // This rank has sent no kJoin to that lower rank on another machine. So there is no connection, and the lower
    // rank does not wait for a message of this rank.
    if (peer < rank_ && peers_[peer].join_sent_ns == 0 && !messenger_.always_reachable(peer)) continue;
    send(peer, header, decision.members);
  }
  ++epoch_;
  promised_ = last_round_ = 0;
  accepted_ = {};
  bound_ = false;
  if (decision.members[rank_]) {
    outcome_ = decision;
    return;
  }
  outcome_ = Error{
      ErrorCode::kRefused, ErrorScope::kCall, -1,
      fmt::format("the other ranks have agreed to continue without rank {}, because they received no message from "
                  "it in time; it can join again as a new rank (grow)",
                  rank_)};
}

// Makes the error for an attempt that found no decision in time. It lists only the ranks that were waited for and
// did not answer. A rank that answers is itself waiting for another rank, so it is not the cause.
Error Consensus::timed_out(std::int64_t now_ns) const {
  std::vector<std::uint32_t> awaited;
  for (std::uint32_t peer = 0; peer < ranks_ && awaited.size() < kMaxNamedRanks; ++peer) {
    const PeerState& state = peers_[peer];
    if (peer == rank_ || state.dead || !silent(state, now_ns)) continue;
    const bool member = phase_ == Phase::kAcceptSent && proposal_.members[peer] && !state.has_accepted;
    const bool knocking = state.join_sent_ns != 0 && now_ns - state.join_sent_ns <= timeout_ns_ / 2;
    const bool candidate = phase_ == Phase::kIdle && peer < rank_ && knocking;
    if (member || candidate || (phase_ == Phase::kPrepareSent && state.prepare_sent && !state.promised))
      awaited.push_back(peer);
  }
  const std::string who = awaited.empty() ? "every rank that was waited for still answers"
                                          : fmt::format("no answer from rank(s) {}", fmt::join(awaited, ", "));
  return {ErrorCode::kTimeout, ErrorScope::kCall, awaited.empty() ? -1 : static_cast<std::int32_t>(awaited.front()),
          fmt::format("no agreement was reached: {}; call again, or kill the processes that hang", who)};
}

}  // namespace tutti::detail
