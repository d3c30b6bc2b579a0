// Who is left, found out by those who are; and communicators of them. Nothing is asked of the parent's engine but what
// it has done.
#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "membership/consensus_participant.h"

namespace tutti::detail {
namespace {

constexpr std::uint64_t kChannel = 0x7c5ae1d3902b46f8;  // apart from the communicator's own, and a SurvivorRendezvous's
constexpr std::uint64_t kCallsChannel = 0x2f19c0b75e6da843;  // what the uniform mode settles, apart from the rest
constexpr std::int64_t kLastWordsNs = 1'000'000'000;         // longest wait until the last messages are on their way

}  // namespace

ConsensusParticipant::ConsensusParticipant(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members,
                                           std::uint32_t rank, std::uint64_t communicator)
    : oob_channel_(std::move(job_context), std::move(members), rank, communicator ^ kChannel, communicator ^ kChannel),
      consensus_(rank, oob_channel_.ranks(), *this) {}

// The higher of two ranks has opened the line, and ends it: the other end may be that of its next coming by now.
void ConsensusParticipant::hang_up() {
  for (std::uint32_t peer = 0; peer < oob_channel_.rank(); ++peer) oob_channel_.hang_up(peer);
}

Result<ConsensusDecision> ConsensusParticipant::decide(const ConsensusVote& voice, std::optional<std::uint32_t> lost,
                                                       std::int64_t patience_ns) {
  Clock& clock = oob_channel_.clock();
  std::vector<bool> hints(oob_channel_.ranks());
  if (lost && *lost < oob_channel_.ranks()) hints[*lost] = true;
  hang_up();  // what is left of a line whose other end has hung up
  consensus_.begin(voice, hints, patience_ns, clock.now_ns());
  const Pause pause(clock);
  for (oob_channel_.pump(); !consensus_.step(clock.now_ns()); oob_channel_.pump()) pause();
  const std::int64_t until_ns = clock.now_ns() + kLastWordsNs;
  const auto on_its_way = [this] {
    for (std::uint32_t peer = 0; peer < oob_channel_.ranks(); ++peer) {
      if (peer != oob_channel_.rank() && !oob_channel_.all_sent_to(peer)) return false;
    }
    return true;
  };
  for (oob_channel_.pump(); !on_its_way() && clock.now_ns() < until_ns; oob_channel_.pump()) pause();
  hang_up();
  return consensus_.outcome();
}

// One agreement on this matter. Errors: those of agree().
Result<ConsensusDecision> CommunicatorImpl::confer(Matter matter, const ConsensusVote& voice,
                                                   std::chrono::milliseconds patience) {
  const auto wanted = patience.count() > 0 ? patience : job_context_->config.setup_timeout;
  const std::int64_t patience_ns = std::int64_t{std::min(wanted, kLongestTimeout).count()} * 1'000'000;
  std::optional<std::uint32_t> lost;
  const auto broken = engine_.broken();
  if (broken && broken->code == ErrorCode::kPeerLost && broken->rank >= 0) {
    lost = static_cast<std::uint32_t>(broken->rank);
  }
  const std::scoped_lock lock(consensus_mutex_);
  std::unique_ptr<ConsensusParticipant>& consensus = matter == Matter::kCalls ? call_consensus_ : consensus_;
  const std::uint64_t number = matter == Matter::kCalls ? id_ ^ kCallsChannel : id_;
  if (consensus == nullptr) consensus = std::make_unique<ConsensusParticipant>(job_context_, members_, rank_, number);
  auto decision = consensus->decide(voice, lost, patience_ns);
  if (decision) return decision;
  Error error = std::move(decision).error();
  error.message = "agree: " + error.message;
  return error;
}

Result<Agreement> CommunicatorImpl::agree(const AgreeOptions& options) {
  if (job_context_ == nullptr) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 "agree: the ranks of a simulation cannot speak beside their communicator"};
  }
  if (options.patience.count() < 0) return invalid_argument("agree: the patience is negative");
  TUTTI_TRY(settle_before(options.patience));
  auto decision = confer(Matter::kAll, {.operation = engine_.last_good(), .value = options.value}, options.patience);
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

// The second agreement is on whether all have the new communicator. It also ends the doubt about the last message of
// its making. Where it names fewer ranks, it is the first of the next round.
Result<std::unique_ptr<Communicator>> CommunicatorImpl::shrink_to_survivors() {
  auto who = agree({});
  while (who.ok()) {
    const std::vector<std::int32_t> survivors = who->survivors;
    auto child = shrink_to({survivors.begin(), survivors.end()});
    who = agree({.value = child.ok() ? 1 : 0});
    if (!who.ok() || who->survivors != survivors) continue;
    if (child.ok() && who->value == 1) return child;
    Error error = child.ok() ? Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the new communicator failed elsewhere"}
                             : std::move(child).error();
    error.message = "shrink: " + error.message;
    error.scope = ErrorScope::kCall;
    return error;
  }
  return who.error();
}

}  // namespace tutti::detail
