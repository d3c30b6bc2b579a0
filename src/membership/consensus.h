// Consensus: the live ranks of a communicator agree on which of them continue. It is used by agree(); decision
// record 0024 states the reasons and the guarantees.
//
// The protocol is a variant of single-decree Paxos (Leslie Lamport, "Paxos Made Simple", 2001). Each decision of a
// communicator is one instance of the protocol, and the instances are numbered by `epoch`. Every rank is a
// participant (Paxos: acceptor and learner). One rank at a time is the coordinator (Paxos: proposer). A ballot
// number consists of a round in the upper 48 bits and the coordinator's rank in the lower 16 bits, so that two
// coordinators never use the same ballot. The messages are:
//
//   message        from -> to                   Paxos name            meaning
//   kJoin          participant -> coordinator   (not in Paxos)        "I take part, and this is my vote"
//   kJoinAck       coordinator -> participant   (not in Paxos)        "this rank is running"; resets the timeout
//   kPrepare       coordinator -> participant   phase 1a, prepare     asks for a promise to ignore lower ballots
//   kPromise       participant -> coordinator   phase 1b, promise     also carries the proposal accepted so far, if any
//   kReject        participant -> coordinator   (an optimization)     "I have promised a higher ballot" (included)
//   kAcceptRequest coordinator -> participant   phase 2a, accept      the proposal of this ballot
//   kAccepted      participant -> coordinator   phase 2b, accepted    the participant has accepted the proposal
//   kDecided       coordinator -> participant   learn                 the decision; some participants forward it
//
// The lowest live rank is the coordinator. Every other rank sends kJoin to the three lowest ranks (the coordinator
// candidates). If a candidate has died, or has been silent for the timeout, the rank tries the next higher one.
// When all live ranks have joined, or the timeout is over, the coordinator sends kPrepare to all joined ranks. It
// then proposes the accepted proposal with the highest ballot that the promises reported. If they reported none, it
// proposes the set of ranks that have promised. It decides when every member of the proposal has accepted. If a
// coordinator dies, the next candidate takes over with a higher ballot, learns from the promises which proposal may
// have been decided, and proposes that one again.
//
// The differences from Paxos:
// - The quorum of phase 2 is not a majority but all members of the proposal, because the surviving one of two ranks
//   must be able to continue. Hence any live member that answers kPrepare can report a proposal that may have been
//   decided. The price is that two groups that cannot communicate for the timeout decide separately.
// - A coordinator may replace its own proposal if a member dies before it accepts. This is safe because only this
//   coordinator could have decided on that proposal. See Consensus::bound_.
// - Nothing is written to disk. A process that has died does not come back under its old rank.
//
// Guarantee: the n-th decisions of two ranks are equal, or have no member in common. The second case is possible
// only if live ranks could not communicate for the timeout.
//
// The class uses no threads and no clock, and never blocks: step() does the work that is possible now. A rank keeps one
// Consensus for the lifetime of its communicator. It stores the last decisions, so that ranks that missed one can
// get it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti::detail {

// The message transport of a Consensus. Messages between two ranks arrive in order, and a message that was sent
// arrives even if its sender exits afterwards.
class ConsensusMessenger {
 public:
  virtual ~ConsensusMessenger() = default;
  // Never blocks.
  virtual void send(std::uint32_t peer, std::string_view message) = 0;
  // The next message from `peer`, or nothing if there is none at the moment.
  virtual std::optional<std::string> take(std::uint32_t peer) = 0;
  // True if the process of `peer` has exited or the connection to it is closed. Messages that it sent before can
  // still be taken.
  virtual bool gone(std::uint32_t peer) = 0;
  // True if this rank can always send to `peer` and can always detect its exit. False if a connection is needed
  // (between machines). The higher one of two ranks opens that connection with its first message. Until then the
  // lower rank can neither send to the higher one nor detect that it has exited.
  virtual bool always_reachable(std::uint32_t peer) = 0;
};

// The input of one rank to a decision. The decision contains the minimum of each field over all members.
struct ConsensusVote {
  // Number of the last collective that completed on this rank.
  std::uint64_t operation = 0;
  // A number from the application.
  std::int64_t value = 0;
};

struct ConsensusDecision {
  // Indexed by rank: true for the ranks that continue.
  std::vector<bool> members;
  std::uint64_t operation = 0;  // minimum over the members
  std::int64_t value = 0;       // minimum over the members

  bool operator==(const ConsensusDecision&) const = default;
};

// It has 42 methods and members, because one rank plays each role of the protocol: it joins, coordinates, proposes and
// votes, and all roles share the ballots.
class Consensus {
 public:
  Consensus(std::uint32_t rank, std::uint32_t ranks, ConsensusMessenger& messenger);

  // Starts the next decision. `suspected` is indexed by rank: true if the caller has reason to believe that the
  // rank has died. The coordinator waits only 100 ms for a suspected rank instead of the full timeout.
  void begin(const ConsensusVote& vote, const std::vector<bool>& suspected, std::int64_t timeout_ns,
             std::int64_t now_ns);
  // Does the work that is possible now. Call it repeatedly until it returns true. Then outcome() is set.
  bool step(std::int64_t now_ns);
  // The result of the last begin(). Errors:
  // - kTimeout: no decision was reached. begin() can be called again, because promises and accepted proposals are
  //   kept.
  // - kRefused: the other ranks decided to continue without this rank.
  const Result<ConsensusDecision>& outcome() const { return *outcome_; }

 private:
  enum class MessageType : std::uint32_t {
    kJoin = 1,
    kJoinAck,
    kPrepare,
    kPromise,
    kReject,
    kAcceptRequest,
    kAccepted,
    kDecided
  };
  // The header of each message. A bit set follows, with one bit for each rank: the suspected ranks in kJoin, the
  // members in kPromise, kAcceptRequest and kDecided.
  struct Header {
    MessageType type = MessageType::kJoin;
    std::uint32_t zero = 0;
    // Number of decisions that the sender has made or received so far. This is the number of its current instance.
    std::uint64_t epoch = 0;
    std::uint64_t ballot = 0;  // in kReject: the ballot that was promised
    // Only in kPromise: the ballot of the accepted proposal that this message carries, or 0 if there is none.
    std::uint64_t accepted = 0;
    std::uint64_t operation = 0;  // of a vote or of a proposal
    std::int64_t value = 0;
  };
  static_assert(sizeof(Header) == 48);
  // The state of this rank's communication with another rank during one begin().
  struct PeerState {
    bool dead = false;
    // True for a lower rank that was silent for the timeout, and for a rank that no longer answers the coordinator.
    bool dropped = false;
    // The rank has sent kJoin and is still expected to take part.
    bool joined = false;
    // The rank has sent kJoin at least once since begin(). Therefore a connection to it exists, even if the
    // coordinator no longer waits for it.
    bool ever_joined = false;
    bool suspected = false;  // a rank reported it as failed, or begin() did
    // Time of the last message from the rank.
    std::int64_t last_heard_ns = 0;
    // Time of the last kJoin that was sent to the rank. 0 if none was sent since begin().
    std::int64_t join_sent_ns = 0;
    ConsensusVote vote{};
    // These three belong to the current ballot, and are used by the coordinator only.
    bool prepare_sent = false;
    bool promised = false;
    bool has_accepted = false;
  };
  struct AcceptedProposal {
    std::uint64_t ballot = 0;  // 0 if nothing has been accepted
    ConsensusDecision proposal{};
  };
  // The coordinator's phase. kPrepareSent is phase 1 of Paxos, and kAcceptSent is phase 2.
  enum class Phase : std::uint8_t { kIdle, kPrepareSent, kAcceptSent };

  void send(std::uint32_t peer, Header header, const std::vector<bool>& bits = {});
  void receive_from(std::uint32_t peer, std::int64_t now_ns);
  void handle(std::uint32_t peer, const Header& header, const std::vector<bool>& bits, std::int64_t now_ns);
  void handle_as_participant(std::uint32_t peer, const Header& header, const ConsensusDecision& received,
                             std::int64_t now_ns);
  void answer_other_epoch(std::uint32_t peer, const Header& header);
  bool promise(std::uint32_t peer, std::uint64_t ballot, std::int64_t now_ns);
  bool contact_candidates(std::int64_t now_ns);
  void send_join(std::uint32_t peer, std::int64_t now_ns);
  bool silent(const PeerState& peer, std::int64_t now_ns) const { return now_ns - peer.last_heard_ns > timeout_ns_; }
  void run_coordinator(std::int64_t now_ns);
  bool all_joined(std::int64_t now_ns) const;
  void send_prepare(std::int64_t now_ns);
  void propose(std::int64_t now_ns);
  void count_promises(std::int64_t now_ns);
  void count_acceptances(std::int64_t now_ns);
  void decide(const ConsensusDecision& decision, std::uint32_t from);
  bool can_reach(std::uint32_t peer) {
    return peer < rank_ || messenger_.always_reachable(peer) || peers_[peer].ever_joined;
  }
  Error timed_out(std::int64_t now_ns) const;

  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  ConsensusMessenger& messenger_;
  std::uint64_t epoch_ = 0;
  std::map<std::uint64_t, ConsensusDecision> decided_;  // the last kKeptDecisions decisions, by epoch
  std::vector<PeerState> peers_;
  std::optional<Result<ConsensusDecision>> outcome_;

  // State of the current instance (epoch). It is kept if an attempt fails with kTimeout.
  // The highest ballot that this rank has promised. Round in the upper 48 bits, rank of the coordinator in the
  // lower 16.
  std::uint64_t promised_ = 0;
  std::uint64_t last_round_ = 0;
  AcceptedProposal accepted_;
  // True if this rank has accepted or adopted a proposal that may have been decided by another coordinator. Then it
  // must not replace that proposal. False if the accepted proposal is its own, or if there is none.
  bool bound_ = false;

  // State of the current attempt, which starts at begin().
  ConsensusVote vote_;
  std::int64_t timeout_ns_ = 0;
  std::int64_t began_ns_ = 0;
  // Set while this rank considers itself the coordinator.
  std::optional<std::int64_t> coordinator_since_ns_;
  // A higher rank that acts as coordinator instead of this one. Set when this rank has promised one of its ballots.
  std::optional<std::uint32_t> followed_coordinator_;
  Phase phase_ = Phase::kIdle;
  std::uint64_t ballot_ = 0;
  std::int64_t phase_since_ns_ = 0;
  // The accepted proposal with the highest ballot that the promises reported.
  AcceptedProposal best_promised_;
  ConsensusDecision proposal_;  // the proposal of this ballot
};

}  // namespace tutti::detail
