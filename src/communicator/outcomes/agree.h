// Agreements: how the surviving ranks of one communicator agree on values by consensus (membership/consensus.h), even
// if the communicator is broken. It owns the ConsensusParticipants and the mutex that orders their use, and no
// threads. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "communicator/membership.h"
#include "engine/engine.h"
#include "membership/consensus_participant.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class UniformMode;

class Agreements {
 public:
  // The two sequences of agreements are independent: agree() uses kAll, UniformMode uses kCalls.
  enum class Topic : std::uint8_t { kAll, kCalls };

  // `membership` must outlive this object. `engine` must exist during each call of the functions below, but need not
  // exist when this object is made or destroyed.
  Agreements(const Membership& membership, Engine& engine) : membership_(membership), engine_(engine) {}

  // Runs the next consensus of `topic` among the surviving ranks. Errors: kTimeout and kRefused, as for
  // Communicator::agree().
  Result<ConsensusDecision> decide(Topic topic, const ConsensusVote& vote, std::chrono::milliseconds timeout);
  // Implements Communicator::agree(). `uniform`: the UniformMode of the communicator, which settles the last
  // uniform call first; null if no calls are uniform.
  Result<Agreement> agree(const AgreeOptions& options, UniformMode* uniform);

 private:
  const Membership& membership_;
  Engine& engine_;
  std::mutex mutex_;
  // Made when first needed: for_calls_ by UniformMode, for_all_ by agree(). Guarded by mutex_.
  std::unique_ptr<ConsensusParticipant> for_calls_;
  std::unique_ptr<ConsensusParticipant> for_all_;
};

}  // namespace tutti::detail
