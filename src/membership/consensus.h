// Consensus: the live ranks of a communicator agree on the set of ranks that continue. Communicator::agree() and
// UniformMode use it. docs/decisions/0024-agree.md states the reasons and the guarantees.
//
// The protocol is a variant of single-decree Paxos (Leslie Lamport, "Paxos Made Simple", 2001). Each decision of a
// Consensus is one instance of the protocol, and the instances are numbered by `epoch`. Every rank is a
// participant (Paxos: acceptor and learner). Normally one rank at a time is the coordinator (Paxos: proposer). A ballot
// number consists of a round in the upper 48 bits and the coordinator's rank in the lower 16 bits, so that two
// coordinators never use the same ballot. The messages are:
//
//   message        from -> to                   Paxos name            meaning
//   kJoin          participant -> coordinator   (not in Paxos)        "I take part, and this is my vote"
//   kJoinAck       coordinator -> participant   (not in Paxos)        "this rank is running"; resets the timeout
//   kPrepare       coordinator -> participant   phase 1a, prepare     asks for a promise to ignore lower ballots
//   kPromise       participant -> coordinator   phase 1b, promise     also carries the proposal accepted so far, if any
//   kReject        participant -> coordinator   (an optimization)     "I have promised this higher ballot"
//   kAcceptRequest coordinator -> participant   phase 2a, accept      the proposal of this ballot
//   kAccepted      participant -> coordinator   phase 2b, accepted    the participant has accepted the proposal
//   kDecided       coordinator -> participant   learn                 the decision; some participants forward it
//
// Normally the lowest live rank is the coordinator. Every other rank sends kJoin to the lowest ranks below it, at most
// kCoordinatorCandidates (consensus.cc) of them (the coordinator candidates). If a candidate has died, or has been
// silent for the timeout, the sender of kJoin contacts another rank instead: the lowest of those below itself that are
// not candidates yet. A rank becomes the coordinator if no rank below it is left, unless it has promised a ballot of a
// higher rank, which it then follows. When all live ranks have joined, or the time for joining is over, the coordinator
// sends kPrepare to all joined ranks. When all of them have promised, died or been silent for the timeout, the
// coordinator makes its proposal: of the accepted proposals that it has itself or that the promises report, the one
// with the highest ballot. If there is none, it proposes the set of itself and the ranks that have promised. It decides
// when every live member of the proposal has accepted. If a coordinator dies, the next candidate takes over with a
// higher ballot, learns from the promises which proposal may have been decided, and proposes that same proposal again.
//
// The differences from Paxos:
// - The quorum of phase 2 is not a majority but all live members of the proposal, because the surviving one of two
//   ranks must be able to continue. Hence any live member that answers kPrepare can report a proposal that may have
//   been decided. The price is that two groups that cannot communicate for the timeout decide separately.
// - A coordinator may replace its own proposal if a member dies or falls silent before it accepts. This is safe because
//   no other rank could have decided on that proposal, and this coordinator has not. See Consensus::bound_.
// - Nothing is written to disk. A process that has died does not come back under its old rank.
//
// Guarantee: the n-th decision of one rank and the n-th decision of another rank are equal, or have no member in
// common. The second case is possible only if live ranks could not communicate for the timeout.
//
// The class uses no threads and no clock, and never blocks: the caller passes the time, and step() does the work
// that is possible at that time. A rank keeps a Consensus for the lifetime of its communicator (one for each
// Agreements::Topic that it uses). The Consensus stores the last kKeptDecisions (consensus.cc) decisions, so that a
// rank that missed a decision can get it later.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti::detail {

// The message transport of a Consensus. Messages between two ranks arrive in order, and normally also if the sender
// exits soon after sending them.
class ConsensusMessenger {
 public:
  virtual ~ConsensusMessenger() = default;
  // Sends a message to `peer`, or queues it. Never blocks.
  virtual void send(std::uint32_t peer, std::string_view message) = 0;
  // Removes and returns the oldest message from `peer`. Returns nothing if there is none at the moment.
  virtual std::optional<std::string> take(std::uint32_t peer) = 0;
  // True if the process of `peer` is known to have exited, or if the connection to it is closed or could not be opened.
  // Between machines an exit is not detected without a connection, see always_reachable(). Messages of `peer` that
  // arrived before can still be taken.
  virtual bool gone(std::uint32_t peer) = 0;
  // True if this rank can always send to `peer` and can always detect the exit of `peer` (both are on one machine).
  // False if a connection is needed (between machines). Of two ranks, the higher one opens that connection with its
  // first message. Until then the lower rank can neither send to the higher rank nor detect its exit.
  virtual bool always_reachable(std::uint32_t peer) = 0;
};

// The input of one rank to a decision. The decision contains the minimum of each field over all of its members.
struct ConsensusVote {
  // Sequence number of the last collective that completed on this rank; 0 if none has. UniformMode passes
  // another number.
  std::uint64_t operation = 0;
  // A number that the application passes to agree(), for example as a yes (1) or no (0). UniformMode passes
  // another number.
  std::int64_t value = 0;
};

struct ConsensusDecision {
  // Indexed by rank: true for the ranks that continue.
  std::vector<bool> members;
  std::uint64_t operation = 0;  // minimum of the members' votes
  std::int64_t value = 0;       // minimum of the members' votes

  bool operator==(const ConsensusDecision&) const = default;
};

// The protocol of one rank. The class has more than 40 methods and members, because a rank can have every role of the
// protocol (participant and coordinator), and the roles share their state, for example the ballots.
class Consensus {
 public:
  Consensus(std::uint32_t rank, std::uint32_t ranks, ConsensusMessenger& messenger);

  // Starts the next decision, or another attempt at a decision for which an earlier attempt failed with kTimeout.
  // `suspected` is indexed by rank: true if the caller has reason to believe that the rank has died. The coordinator
  // waits only for kSuspectedTimeoutNs (consensus.cc), if that is shorter than the timeout, for a suspected rank to
  // join. `now_ns` is the current time of any monotonic clock, the same in all calls.
  void begin(const ConsensusVote& vote, const std::vector<bool>& suspected, std::int64_t timeout_ns,
             std::int64_t now_ns);
  // Does the work that is possible now. After begin(), call step() repeatedly until it returns true. outcome() is
  // then set.
  bool step(std::int64_t now_ns);
  // The result of the attempt that the last begin() started. May be called only after step() has returned true.
  // Errors:
  // - kTimeout: no decision was reached within kTimeoutsPerAttempt (consensus.cc) timeouts. begin() may be called again
  //   to continue, because promises and accepted proposals are kept.
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
  // The header of each message. After it follows a set with one bit for each rank: the suspected or dead ranks in
  // kJoin, the members of the proposal or decision in kPromise, kAcceptRequest and kDecided, and zeros in the other
  // messages.
  struct Header {
    MessageType type = MessageType::kJoin;
    std::uint32_t zero = 0;
    // Number of the instance (decision) to which the message belongs, counted from 0. It is the number of decisions
    // that the sender knows, except in kDecided, which may deliver an older decision.
    std::uint64_t epoch = 0;
    std::uint64_t ballot = 0;  // in kReject: the higher ballot that the sender has promised
    // Only in kPromise: the ballot of the accepted proposal that this message carries, or 0 if there is none.
    std::uint64_t accepted = 0;
    // The values of `operation` and `value` in the vote of the sender (kJoin), in the proposal (kPromise,
    // kAcceptRequest) or in the decision (kDecided). 0 in the other messages.
    std::uint64_t operation = 0;
    std::int64_t value = 0;
  };
  static_assert(sizeof(Header) == 48);
  // This rank's knowledge about another rank since the last begin().
  struct PeerState {
    bool dead = false;
    // True for a lower rank that this rank has given up as a candidate because it was silent for the timeout. At the
    // coordinator: true for a rank that no longer answers. The next message of a lower rank, or kJoin of any rank,
    // makes it false again.
    bool dropped = false;
    // The rank has sent kJoin, and this rank, as the coordinator, still expects it to take part.
    bool joined = false;
    // The rank has sent kJoin at least once since begin(). Therefore there was a connection to the rank,
    // even if this rank, as the coordinator, no longer waits for it.
    bool ever_joined = false;
    bool suspected = false;  // the caller of begin() or a rank that joined believes it has died
    // Time of the last message from the rank or, if that is later, of begin(), of the first kJoin to the rank, or of
    // the promise by which this rank began to follow it.
    std::int64_t last_heard_ns = 0;
    // Time of the last kJoin that was sent to the rank. 0 if none was sent since begin().
    std::int64_t join_sent_ns = 0;
    ConsensusVote vote{};
    // At the coordinator, for its current ballot:
    bool prepare_sent = false;  // kPrepare was sent to the rank, which has not died or fallen silent before kPromise
    bool promised = false;      // the rank's kPromise has arrived
    bool has_accepted = false;  // the rank's kAccepted has arrived
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

  // The following state belongs to the current instance (epoch). It is kept if an attempt fails with kTimeout.
  //
  // The highest ballot that this rank has promised, or 0 if it has promised none.
  std::uint64_t promised_ = 0;
  // The highest round of any ballot that this rank has promised or used as coordinator.
  std::uint64_t last_round_ = 0;
  AcceptedProposal accepted_;
  // True if this rank has accepted the proposal of another coordinator, or has proposed it again. That proposal may
  // have been decided already, so this rank must not replace it by another one. False if accepted_ is a proposal
  // that this rank has made itself, or if there is none.
  bool bound_ = false;

  // The following state belongs to the current attempt, which starts at begin().
  ConsensusVote vote_;
  std::int64_t timeout_ns_ = 0;
  std::int64_t began_ns_ = 0;
  // The time at which this rank first became the coordinator in this attempt. Empty if it has not.
  std::optional<std::int64_t> coordinator_since_ns_;
  // A higher rank that acts as the coordinator, because this rank has promised a ballot of that rank. Empty if
  // there is none, or if that rank has died or been silent for the timeout.
  std::optional<std::uint32_t> followed_coordinator_;
  Phase phase_ = Phase::kIdle;
  std::uint64_t ballot_ = 0;
  std::int64_t phase_since_ns_ = 0;
  // Of the accepted proposals that the promises of ballot_ have reported, and of the one that was in accepted_ when
  // ballot_ began if bound_ was true, the one with the highest ballot.
  AcceptedProposal best_promised_;
  ConsensusDecision proposal_;  // the proposal that this rank makes as coordinator in ballot_
};

}  // namespace tutti::detail
