// ConsensusParticipant: one rank's Consensus (membership/consensus.h), together with the OobChannel that carries
// its messages. Only one thread at a time may use it.
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
  // The parameters are those of the constructor of SurvivorRendezvous. `communicator` is an id that is the same on
  // all members, and different for each ConsensusParticipant of a rank.
  ConsensusParticipant(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
                       std::uint64_t communicator);

  // Runs one attempt at a decision. Blocks until there is a decision or an error, for at most kTimeoutsPerAttempt
  // (consensus.cc) timeouts, and then up to kFlushNs until the last messages are sent. `lost` is a rank that is
  // believed to have died, for which the coordinator waits only briefly; empty if there is none. Errors: those of
  // Consensus::outcome().
  Result<ConsensusDecision> decide(const ConsensusVote& vote, std::optional<std::uint32_t> lost,
                                   std::int64_t timeout_ns);

 private:
  void send(std::uint32_t peer, std::string_view message) override { oob_channel_.send(peer, message); }
  std::optional<std::string> take(std::uint32_t peer) override { return oob_channel_.take(peer); }
  bool gone(std::uint32_t peer) override { return oob_channel_.gone(peer); }
  bool always_reachable(std::uint32_t peer) override { return oob_channel_.on_same_machine(peer); }
  // Closes the connections that this rank has opened, which are those to lower ranks on other machines.
  void hang_up();

  OobChannel oob_channel_;
  Consensus consensus_;
};

}  // namespace tutti::detail
