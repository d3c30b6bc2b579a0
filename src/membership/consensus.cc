#include "membership/consensus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/assert.h"

namespace tutti::detail {
namespace {

constexpr std::uint32_t kDoors = 3;
constexpr std::size_t kKeptDecisions = 16;
constexpr std::int64_t kKnocksPerPatience = 8;
constexpr std::int64_t kMostKnockNs = 250'000'000;
constexpr std::int64_t kLostPatienceNs = 100'000'000;  // for those that are said to be gone
constexpr std::int64_t kPatiences = 4;                 // after which an attempt is given up
constexpr std::size_t kMostNamed = 16;

std::uint32_t host_of(std::uint64_t ballot) { return static_cast<std::uint32_t>(ballot & 0xffff); }

}  // namespace

Consensus::Consensus(std::uint32_t rank, std::uint32_t ranks, ConsensusMessenger& post)
    : rank_(rank), ranks_(ranks), post_(post), peers_(ranks) {
  TUTTI_ASSERT(rank < ranks && ranks <= 65'536);
}

void Consensus::begin(const ConsensusVote& voice, const std::vector<bool>& lost, std::int64_t patience_ns,
                      std::int64_t now_ns) {
  TUTTI_ASSERT(lost.size() == ranks_ && patience_ns > 0);
  peers_.assign(ranks_, {.heard_ns = now_ns});
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) peers_[peer].lost = lost[peer];
  outcome_.reset();
  voice_ = voice;
  patience_ns_ = patience_ns;
  began_ns_ = now_ns;
  hosting_since_ns_.reset();
  follows_.reset();
  phase_ = Phase::kIdle;
}

bool Consensus::step(std::int64_t now_ns) {
  for (std::uint32_t peer = 0; peer < ranks_ && !outcome_; ++peer) {
    if (peer == rank_) continue;
    const bool ended = post_.gone(peer);  // before we hear it: what it said before its end still counts
    hear(peer, now_ns);
    // The end of a line tells something only of a rank that we have spoken to, or that has spoken to us.
    Peer& about = peers_[peer];
    about.dead = ended && (post_.direct(peer) || about.here || (peer < rank_ && about.knocked_ns != 0));
  }
  if (!outcome_ && !knock(now_ns)) {
    if (!hosting_since_ns_) hosting_since_ns_ = now_ns;
    host(now_ns);
  }
  if (!outcome_ && now_ns - began_ns_ > kPatiences * patience_ns_) outcome_ = timed_out(now_ns);
  return outcome_.has_value();
}

void Consensus::send(std::uint32_t peer, Header header, const std::vector<bool>& bits) {
  header.epoch = header.kind == Kind::kDecided ? header.epoch : epoch_;
  std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
  std::string row((ranks_ + 7) / 8, '\0');
  for (std::uint32_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) row[i / 8] = static_cast<char>(row[i / 8] | (1 << (i % 8)));
  }
  post_.send(peer, message + row);
}

void Consensus::hear(std::uint32_t peer, std::int64_t now_ns) {
  while (!outcome_) {  // what comes after the decision belongs to the next
    const auto message = post_.take(peer);
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
  Peer& from = peers_[peer];
  from.heard_ns = now_ns;
  if (peer < rank_) from.dropped = false;
  if (header.epoch != epoch_) return answer_other_epoch(peer, header);
  const bool of_ballot = phase_ != Phase::kIdle && header.ballot == ballot_;
  const ConsensusDecision said{.members = bits, .operation = header.operation, .value = header.value};
  switch (header.kind) {
    case Kind::kCome:
      from.here = from.spoke = true;
      from.dropped = false;
      from.voice = {header.operation, header.value};
      for (std::uint32_t i = 0; i < ranks_; ++i) peers_[i].lost = peers_[i].lost || bits[i];
      return send(peer, {.kind = Kind::kHere});
    case Kind::kHere: return;
    case Kind::kPromise:
      if (!of_ballot || phase_ != Phase::kAsked) return;
      from.promised = true;
      if (header.accepted > best_.ballot) best_ = {header.accepted, said};
      return;
    case Kind::kAccept:
      if (of_ballot && phase_ == Phase::kProposed) from.acked = true;
      return;
    case Kind::kRefuse:
      if (phase_ != Phase::kIdle && header.ballot > ballot_) {
        promise(host_of(header.ballot), header.ballot, now_ns);
      }
      return;
    case Kind::kAsk:
    case Kind::kPropose:
    case Kind::kDecided: return handle_as_guest(peer, header, said, now_ns);
  }
}

void Consensus::handle_as_guest(std::uint32_t peer, const Header& header, const ConsensusDecision& said,
                                std::int64_t now_ns) {
  if (header.kind == Kind::kDecided) return decide(said, peer);
  if (host_of(header.ballot) != peer) return;
  if (!promise(peer, header.ballot, now_ns)) return send(peer, {.kind = Kind::kRefuse, .ballot = promised_});
  if (header.kind == Kind::kAsk) {
    const ConsensusDecision& proposal = accepted_.proposal;
    return send(peer,
                {.kind = Kind::kPromise,
                 .ballot = header.ballot,
                 .accepted = accepted_.ballot,
                 .operation = proposal.operation,
                 .value = proposal.value},
                proposal.members);
  }
  accepted_ = {header.ballot, said};
  bound_ = true;
  send(peer, {.kind = Kind::kAccept, .ballot = header.ballot});
}

// One of us has missed decisions.
void Consensus::answer_other_epoch(std::uint32_t peer, const Header& header) {
  const bool wants_answer = header.kind == Kind::kCome || header.kind == Kind::kAsk || header.kind == Kind::kPropose;
  if (!wants_answer && header.kind != Kind::kHere) return;
  if (header.epoch > epoch_) return knock_at(peer, peers_[peer].heard_ns);
  const auto found = decided_.find(header.epoch);
  if (!wants_answer || found == decided_.end()) return;
  const ConsensusDecision& decision = found->second;
  send(peer, {.kind = Kind::kDecided, .epoch = found->first, .operation = decision.operation, .value = decision.value},
       decision.members);
}

// To `peer`, to listen to no ballot before this one. Whoever hosted until now follows it.
bool Consensus::promise(std::uint32_t peer, std::uint64_t ballot, std::int64_t now_ns) {
  if (ballot < promised_ || peer >= ranks_ || peer == rank_) return false;
  promised_ = ballot;
  last_round_ = std::max(last_round_, ballot >> 16);
  phase_ = Phase::kIdle;
  if (peer > rank_) {
    follows_ = peer;
    peers_[peer].heard_ns = now_ns;
  }
  return true;
}

void Consensus::knock_at(std::uint32_t peer, std::int64_t now_ns) {
  peers_[peer].knocked_ns = now_ns;
  std::vector<bool> lost(ranks_);
  for (std::uint32_t i = 0; i < ranks_; ++i) lost[i] = peers_[i].lost || peers_[i].dead;
  send(peer, {.kind = Kind::kCome, .operation = voice_.operation, .value = voice_.value}, lost);
}

// False: there is nobody to host but us.
bool Consensus::knock(std::int64_t now_ns) {
  const std::int64_t every_ns = std::min(patience_ns_ / kKnocksPerPatience, kMostKnockNs);
  std::uint32_t doors = 0;
  const auto visit = [&](std::uint32_t peer) {
    Peer& door = peers_[peer];
    if (door.knocked_ns == 0) door.heard_ns = now_ns;
    if (door.knocked_ns == 0 || now_ns - door.knocked_ns >= every_ns) knock_at(peer, now_ns);
    ++doors;
  };
  if (follows_) {
    if (!peers_[*follows_].dead && !silent(peers_[*follows_], now_ns) && can_reach(*follows_)) {
      visit(*follows_);
      return true;
    }
    follows_.reset();
  }
  for (std::uint32_t peer = 0; peer < rank_ && doors < kDoors; ++peer) {
    Peer& door = peers_[peer];
    // The first doors had their patience from our coming on, so that all move on together.
    const std::int64_t since_ns = std::max(door.heard_ns, began_ns_);
    if (door.knocked_ns != 0 && now_ns - since_ns > patience_ns_) door.dropped = true;
    if (!door.dead && !door.dropped) visit(peer);
  }
  return doors > 0;
}

void Consensus::host(std::int64_t now_ns) {
  if (phase_ == Phase::kIdle && all_have_come(now_ns)) ask(now_ns);
  if (phase_ == Phase::kAsked) count_promises(now_ns);
  if (phase_ == Phase::kProposed) count_acceptances(now_ns);
}

bool Consensus::all_have_come(std::int64_t now_ns) const {
  const std::int64_t until_ns = std::max(began_ns_ + patience_ns_, *hosting_since_ns_ + patience_ns_ / 4);
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    const Peer& about = peers_[peer];
    if (peer == rank_ || about.dead || about.dropped || about.here) continue;
    const bool over = now_ns >= until_ns || (about.lost && now_ns >= began_ns_ + kLostPatienceNs);
    if (!over) return false;
  }
  return true;
}

void Consensus::ask(std::int64_t now_ns) {
  ballot_ = (++last_round_ << 16) | rank_;
  promised_ = ballot_;
  phase_ = Phase::kAsked;
  phase_since_ns_ = now_ns;
  best_ = bound_ ? accepted_ : Accepted();  // what only we have proposed was not decided, or we would know
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    Peer& guest = peers_[peer];
    guest.promised = guest.acked = false;
    guest.asked = peer != rank_ && guest.here && !guest.dead && !guest.dropped;
    if (guest.asked) send(peer, {.kind = Kind::kAsk, .ballot = ballot_});
  }
}

void Consensus::count_promises(std::int64_t now_ns) {
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    Peer& guest = peers_[peer];
    if (!guest.asked || guest.promised) continue;
    if (guest.dead) {
      guest.asked = false;
    } else if (now_ns - phase_since_ns_ > patience_ns_ && silent(guest, now_ns)) {
      guest.asked = guest.here = false;
      guest.dropped = true;
    } else {
      return;
    }
  }
  propose(now_ns);
}

void Consensus::propose(std::int64_t now_ns) {
  phase_ = Phase::kProposed;
  phase_since_ns_ = now_ns;
  const bool own = best_.ballot == 0 || (!bound_ && host_of(best_.ballot) == rank_);
  if (own) {
    proposal_ = {std::vector<bool>(ranks_), voice_.operation, voice_.value};
    proposal_.members[rank_] = true;
    for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
      const Peer& guest = peers_[peer];
      if (!guest.asked || guest.dead) continue;
      proposal_.members[peer] = true;
      proposal_.operation = std::min(proposal_.operation, guest.voice.operation);
      proposal_.value = std::min(proposal_.value, guest.voice.value);
    }
  } else {
    proposal_ = best_.proposal;
    bound_ = true;
  }
  accepted_ = {ballot_, proposal_};
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || !proposal_.members[peer] || peers_[peer].dead || !can_reach(peer)) continue;
    send(peer, {.kind = Kind::kPropose, .ballot = ballot_, .operation = proposal_.operation, .value = proposal_.value},
         proposal_.members);
  }
}

// Where a member dies before it has accepted, what we have proposed ourselves is proposed anew without it.
void Consensus::count_acceptances(std::int64_t now_ns) {
  bool all = true;
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || !proposal_.members[peer]) continue;
    Peer& member = peers_[peer];
    if (member.acked) continue;
    const bool stuck = !member.dead && now_ns - phase_since_ns_ > patience_ns_ && silent(member, now_ns);
    if (!bound_ && (member.dead || stuck)) {
      member.here = false;
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
      .kind = Kind::kDecided, .epoch = epoch_, .operation = decision.operation, .value = decision.value};
  std::uint32_t before = 0;  // members before us that pass it on
  for (std::uint32_t peer = 0; peer < rank_; ++peer) before += decision.members[peer] && peer != from ? 1 : 0;
  const bool passes_on = from == rank_ || before < kDoors;
  for (std::uint32_t peer = 0; peer < ranks_ && passes_on; ++peer) {
    // Also who was taken for dead or silent, and has come to us: it would go on by what it has accepted.
    const bool concerned = from == rank_ || decision.members[peer] || peers_[peer].spoke;
    if (peer == rank_ || peer == from || !concerned || peers_[peer].dead || !can_reach(peer)) continue;
    if (peer < rank_ && peers_[peer].knocked_ns == 0 && !post_.direct(peer)) continue;  // it does not wait for us
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
  outcome_ =
      Error{ErrorCode::kRefused, ErrorScope::kCall, -1,
            fmt::format("the others have gone on without rank {}, which they could not hear in time: it can come "
                        "back as a newcomer (grow)",
                        rank_)};
}

// Named are those that were awaited and did not answer: who answers waits for another itself.
Error Consensus::timed_out(std::int64_t now_ns) const {
  std::vector<std::uint32_t> awaited;
  for (std::uint32_t peer = 0; peer < ranks_ && awaited.size() < kMostNamed; ++peer) {
    const Peer& about = peers_[peer];
    if (peer == rank_ || about.dead || !silent(about, now_ns)) continue;
    const bool member = phase_ == Phase::kProposed && proposal_.members[peer] && !about.acked;
    const bool knocking = about.knocked_ns != 0 && now_ns - about.knocked_ns <= patience_ns_ / 2;
    const bool door = phase_ == Phase::kIdle && peer < rank_ && knocking;
    if (member || door || (phase_ == Phase::kAsked && about.asked && !about.promised)) awaited.push_back(peer);
  }
  const std::string who = awaited.empty() ? "though all that were awaited answer"
                                          : fmt::format("awaited: rank(s) {}", fmt::join(awaited, ", "));
  return {ErrorCode::kTimeout, ErrorScope::kCall, awaited.empty() ? -1 : static_cast<std::int32_t>(awaited.front()),
          fmt::format("no agreement was reached, {}; call again, or end what hangs", who)};
}

}  // namespace tutti::detail
