// Consensus: how the living ranks of a communicator find out together who they are. Used by agree(); decision record
// 0024 has the reasons and what is promised.
//
// The lowest rank that lives hosts. All others knock at the doors of the lowest three, and go on to the next where one
// of them has died or stays silent for the patience. When all have come that live, or the patience is over, the host
// asks everyone for a promise (to listen to no earlier ballot), proposes what follows from what it has heard, and
// decides when every member of the proposal has accepted it. A host that dies is followed by the next one, which finds
// out by the promises what may have been decided, and proposes that. Who hears a decision at one of the doors passes it
// on before it leaves.
//
// So: the n-th decisions of two ranks are the same, or have no member in common. The latter only where ranks that live
// could not hear each other for the patience.
//
// No threads, no clock, no waiting: step() does what can be done. A rank's consensus lives as long as its communicator,
// and keeps the last decisions for those who have missed one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti::detail {

// How a consensus speaks. Messages between two ranks come in order, and come even when their sender ends afterwards.
class ConsensusMessenger {
 public:
  virtual ~ConsensusMessenger() = default;
  virtual void send(std::uint32_t peer, std::string_view message) = 0;
  virtual std::optional<std::string> take(std::uint32_t peer) = 0;
  virtual bool gone(std::uint32_t peer) = 0;
  // False: the lower rank of two is heard of, and can speak, once the higher one has spoken to it.
  virtual bool direct(std::uint32_t peer) = 0;
};

struct ConsensusVote {
  std::uint64_t operation = 0;
  std::int64_t value = 0;
};

struct ConsensusDecision {
  std::vector<bool> members;    // by rank: who goes on
  std::uint64_t operation = 0;  // the least of theirs
  std::int64_t value = 0;       // likewise

  bool operator==(const ConsensusDecision&) const = default;
};

class Consensus {
 public:
  Consensus(std::uint32_t rank, std::uint32_t ranks, ConsensusMessenger& post);

  // Comes to the next decision. `lost`, by rank: who is said to be gone, and is waited for a moment only.
  void begin(const ConsensusVote& voice, const std::vector<bool>& lost, std::int64_t patience_ns, std::int64_t now_ns);
  // Until it returns true: then there is an outcome.
  bool step(std::int64_t now_ns);
  // Errors: kTimeout (it may be tried again: what was promised is kept), kRefused (the others decided without this
  // rank).
  const Result<ConsensusDecision>& outcome() const { return *outcome_; }

 private:
  enum class Kind : std::uint32_t { kCome = 1, kHere, kAsk, kPromise, kRefuse, kPropose, kAccept, kDecided };
  struct Header {  // of a message; a row of bits follows, one for each rank
    Kind kind = Kind::kCome;
    std::uint32_t zero = 0;
    std::uint64_t epoch = 0;      // how many decisions the sender has
    std::uint64_t ballot = 0;     // kRefuse: the one that was promised
    std::uint64_t accepted = 0;   // kPromise: the ballot of the proposal that follows; 0: none does
    std::uint64_t operation = 0;  // of a voice or a proposal
    std::int64_t value = 0;
  };
  static_assert(sizeof(Header) == 48);
  struct Peer {
    bool dead = false;
    bool dropped = false;  // a lower one that was silent for too long, or one that no longer answers the host
    bool here = false;
    bool spoke = false;  // ever, in this agreement: so there is a line to it, also where it is no longer waited for
    bool lost = false;   // somebody says so
    std::int64_t heard_ns = 0;
    std::int64_t knocked_ns = 0;  // 0: not in this agreement
    ConsensusVote voice{};
    bool asked = false;
    bool promised = false;
    bool acked = false;
  };
  struct Accepted {
    std::uint64_t ballot = 0;  // 0: nothing
    ConsensusDecision proposal{};
  };
  enum class Phase : std::uint8_t { kIdle, kAsked, kProposed };

  void send(std::uint32_t peer, Header header, const std::vector<bool>& bits = {});
  void hear(std::uint32_t peer, std::int64_t now_ns);
  void handle(std::uint32_t peer, const Header& header, const std::vector<bool>& bits, std::int64_t now_ns);
  void handle_as_guest(std::uint32_t peer, const Header& header, const ConsensusDecision& said, std::int64_t now_ns);
  void answer_other_epoch(std::uint32_t peer, const Header& header);
  bool promise(std::uint32_t peer, std::uint64_t ballot, std::int64_t now_ns);
  bool knock(std::int64_t now_ns);
  void knock_at(std::uint32_t peer, std::int64_t now_ns);
  bool silent(const Peer& peer, std::int64_t now_ns) const { return now_ns - peer.heard_ns > patience_ns_; }
  void host(std::int64_t now_ns);
  bool all_have_come(std::int64_t now_ns) const;
  void ask(std::int64_t now_ns);
  void propose(std::int64_t now_ns);
  void count_promises(std::int64_t now_ns);
  void count_acceptances(std::int64_t now_ns);
  void decide(const ConsensusDecision& decision, std::uint32_t from);
  bool can_reach(std::uint32_t peer) { return peer < rank_ || post_.direct(peer) || peers_[peer].spoke; }
  Error timed_out(std::int64_t now_ns) const;

  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  ConsensusMessenger& post_;
  std::uint64_t epoch_ = 0;
  std::map<std::uint64_t, ConsensusDecision> decided_;  // the last ones, by epoch
  std::vector<Peer> peers_;
  std::optional<Result<ConsensusDecision>> outcome_;

  // Of this epoch; kept where an attempt has failed.
  std::uint64_t promised_ = 0;  // a ballot: its round, and in the low 16 bits its host
  std::uint64_t last_round_ = 0;
  Accepted accepted_;
  bool bound_ = false;  // to a proposal that was somebody else's

  // Of this attempt.
  ConsensusVote voice_;
  std::int64_t patience_ns_ = 0;
  std::int64_t began_ns_ = 0;
  std::optional<std::int64_t> hosting_since_ns_;
  std::optional<std::uint32_t> follows_;  // a higher rank, which hosts in place of this one
  Phase phase_ = Phase::kIdle;
  std::uint64_t ballot_ = 0;
  std::int64_t phase_since_ns_ = 0;
  Accepted best_;               // that the promises have told of
  ConsensusDecision proposal_;  // of this ballot
};

}  // namespace tutti::detail
