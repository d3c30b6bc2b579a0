// agree() and shrink() without a list: the surviving ranks of a communicator find out which ranks are left, and make
// a communicator of them. The parent's engine may be broken; it is only asked for its last good operation and for
// the error that broke it.
#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "membership/consensus_participant.h"

namespace tutti::detail {
namespace {

// Mixed into the communicator's id, so that the consensus messages are kept apart from the messages of the
// communicator and of a SurvivorRendezvous.
constexpr std::uint64_t kChannel = 0x7c5ae1d3902b46f8;
// Mixed in as well for the agreements of the uniform mode, which are kept apart from those of agree().
constexpr std::uint64_t kCallsChannel = 0x2f19c0b75e6da843;
constexpr std::int64_t kFlushNs = 1'000'000'000;  // longest wait until the last messages are sent

}  // namespace

ConsensusParticipant::ConsensusParticipant(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members,
                                           std::uint32_t rank, std::uint64_t communicator)
    : oob_channel_(std::move(job_context), std::move(members), rank, communicator ^ kChannel, communicator ^ kChannel),
      consensus_(rank, oob_channel_.ranks(), *this) {}

// Closes the connections to lower ranks. Between two ranks, the higher one opens the connection and the higher one
// closes it. If the lower rank closed it, it could close a connection that the other rank has meanwhile opened for
// its next agreement.
void ConsensusParticipant::hang_up() {
  for (std::uint32_t peer = 0; peer < oob_channel_.rank(); ++peer) oob_channel_.hang_up(peer);
}

Result<ConsensusDecision> ConsensusParticipant::decide(const ConsensusVote& vote, std::optional<std::uint32_t> lost,
                                                       std::int64_t timeout_ns) {
  Clock& clock = oob_channel_.clock();
  std::vector<bool> lost_ranks(oob_channel_.ranks());
  if (lost && *lost < oob_channel_.ranks()) lost_ranks[*lost] = true;
  hang_up();  // remove connections whose other end has already closed them
  consensus_.begin(vote, lost_ranks, timeout_ns, clock.now_ns());
  const BackoffSleep pause(clock);
  for (oob_channel_.pump(); !consensus_.step(clock.now_ns()); oob_channel_.pump()) pause();
  const std::int64_t until_ns = clock.now_ns() + kFlushNs;
  const auto all_sent = [this] {
    for (std::uint32_t peer = 0; peer < oob_channel_.ranks(); ++peer) {
      if (peer != oob_channel_.rank() && !oob_channel_.all_sent_to(peer)) return false;
    }
    return true;
  };
  for (oob_channel_.pump(); !all_sent() && clock.now_ns() < until_ns; oob_channel_.pump()) pause();
  hang_up();
  return consensus_.outcome();
}

// Runs one consensus of the given type among the surviving ranks. Errors: those of agree().
Result<ConsensusDecision> CommunicatorImpl::decide_by_consensus(ConsensusTopic topic, const ConsensusVote& vote,
                                                                std::chrono::milliseconds timeout) {
  const auto wanted = timeout.count() > 0 ? timeout : job_context_->config.setup_timeout;
  const std::int64_t timeout_ns = std::int64_t{std::min(wanted, kLongestTimeout).count()} * 1'000'000;
  std::optional<std::uint32_t> lost;
  const auto broken = engine_.broken();
  if (broken && broken->code == ErrorCode::kPeerLost && broken->rank >= 0) {
    lost = static_cast<std::uint32_t>(broken->rank);
  }
  const std::scoped_lock lock(consensus_mutex_);
  std::unique_ptr<ConsensusParticipant>& consensus = topic == ConsensusTopic::kCalls ? call_consensus_ : consensus_;
  const std::uint64_t number = topic == ConsensusTopic::kCalls ? id_ ^ kCallsChannel : id_;
  if (consensus == nullptr) consensus = std::make_unique<ConsensusParticipant>(job_context_, members_, rank_, number);
  auto decision = consensus->decide(vote, lost, timeout_ns);
  if (decision) return decision;
  Error error = std::move(decision).error();
  error.message = "agree: " + error.message;
  return error;
}

Result<Agreement> CommunicatorImpl::agree(const AgreeOptions& options) {
  if (job_context_ == nullptr) {
    return Error{
        ErrorCode::kUnsupported, ErrorScope::kCall, -1,
        "agree: not supported in a simulation, whose ranks can exchange messages only through their communicator"};
  }
  if (options.timeout.count() < 0) return invalid_argument("agree: the timeout is negative");
  TUTTI_TRY(settle_before(options.timeout));
  auto decision = decide_by_consensus(ConsensusTopic::kAll, {.operation = engine_.last_good(), .value = options.value},
                                      options.timeout);
  const bool again = !decision && decision.error().code == ErrorCode::kTimeout;
  if (uniform_ && !again) {
    const std::scoped_lock lock(uniform_mutex_);
    agreeing_ = false;
  }
  if (!decision) return decision.error();
  Agreement agreement{.survivors = {}, .last_operation = decision->operation, .value = decision->value};
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (decision->members[rank]) agreement.survivors.push_back(static_cast<std::int32_t>(rank));
  }
  return agreement;
}

// Each round makes a new communicator of the ranks that the last agreement named, and then agrees a second time on
// whether all of them have it. This second agreement also resolves the case that the last message of the set-up was
// lost and one rank does not know whether the others succeeded. If the second agreement names fewer ranks, its list
// is the start of the next round.
Result<std::unique_ptr<Communicator>> CommunicatorImpl::shrink_to_survivors() {
  auto who = agree({});
  while (who.ok()) {
    const std::vector<std::int32_t> survivors = who->survivors;
    auto child = shrink_to({survivors.begin(), survivors.end()});
    who = agree({.value = child.ok() ? 1 : 0});
    if (!who.ok() || who->survivors != survivors) continue;
    if (child.ok() && who->value == 1) return child;
    Error error = child.ok()
                      ? Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the new communicator failed on another rank"}
                      : std::move(child).error();
    error.message = "shrink: " + error.message;
    error.scope = ErrorScope::kCall;
    return error;
  }
  return who.error();
}

}  // namespace tutti::detail
