#include "membership/consensus_participant.h"

#include <utility>

namespace tutti::detail {
namespace {

// Combined with the communicator's id to a channel number, so that the consensus messages are kept apart from the
// messages of the communicator and of a SurvivorRendezvous, which makes its channels from the same id.
constexpr std::uint64_t kConsensusChannel = 0x7c5ae1d3902b46f8;
constexpr std::int64_t kFlushNs = 1'000'000'000;  // longest wait after an attempt until the last messages are sent

}  // namespace

ConsensusParticipant::ConsensusParticipant(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members,
                                           std::uint32_t rank, std::uint64_t communicator)
    : oob_channel_(std::move(job_context), std::move(members), rank, communicator ^ kConsensusChannel,
                   communicator ^ kConsensusChannel),
      consensus_(rank, oob_channel_.ranks(), *this) {}

// Closes the connections to lower ranks. Of two ranks, the higher one opens the connection, and the higher one
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
  hang_up();  // close connections of an earlier attempt
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

}  // namespace tutti::detail
