// ConsensusParticipant: a communicator's place in the consensus of its ranks (runtime/consensus.h), which speaks by
// OobChannel. For one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "membership/consensus.h"
#include "membership/oob_channel.h"

namespace tutti::detail {

class ConsensusParticipant final : private ConsensusMessenger {
 public:
  // As a SurvivorRendezvous.
  ConsensusParticipant(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
                       std::uint64_t communicator);

  // Blocks until there is an outcome, at most 4 patiences. `lost`: a rank that is said to be gone.
  Result<ConsensusDecision> decide(const ConsensusVote& voice, std::optional<std::uint32_t> lost,
                                   std::int64_t patience_ns);

 private:
  void send(std::uint32_t peer, std::string_view message) override { oob_channel_.send(peer, message); }
  std::optional<std::string> take(std::uint32_t peer) override { return oob_channel_.take(peer); }
  bool gone(std::uint32_t peer) override { return oob_channel_.gone(peer); }
  bool direct(std::uint32_t peer) override { return oob_channel_.by_exchange(peer); }
  void hang_up();

  OobChannel oob_channel_;
  Consensus consensus_;
};

}  // namespace tutti::detail
