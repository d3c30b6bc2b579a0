// Agreements: the communicator may be broken. Therefore its engine is not used to send messages. It only returns the
// number of the last good operation and the error that broke the communicator.
#include "communicator/outcomes/agree.h"

#include <optional>
#include <utility>

#include "base/assert.h"
#include "communicator/outcomes/uniform.h"

namespace tutti::detail {
namespace {

// Mixed into the communicator's id for the agreements of UniformMode, which are kept apart from those of
// agree().
constexpr std::uint64_t kCallsChannel = 0x2f19c0b75e6da843;

}  // namespace

Result<ConsensusDecision> Agreements::decide(Topic topic, const ConsensusVote& vote,
                                             std::chrono::milliseconds timeout) {
  const std::int64_t limit_ns = timeout_ns(timeout, membership_.job_context->config.setup_timeout);
  std::optional<std::uint32_t> lost;
  const auto broken = engine_.broken();
  const bool names_another =
      broken && broken->rank >= 0 && static_cast<std::uint32_t>(broken->rank) != membership_.rank;
  if (names_another && broken->code == ErrorCode::kPeerLost) {
    lost = static_cast<std::uint32_t>(broken->rank);
  }
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<ConsensusParticipant>& participant = topic == Topic::kCalls ? for_calls_ : for_all_;
  const std::uint64_t number = topic == Topic::kCalls ? membership_.id ^ kCallsChannel : membership_.id;
  if (participant == nullptr) {
    participant =
        std::make_unique<ConsensusParticipant>(membership_.job_context, membership_.members, membership_.rank, number);
  }
  auto decision = participant->decide(vote, lost, limit_ns);
  if (decision) return decision;
  Error error = std::move(decision).error();
  error.message = "agree: " + error.message;
  return error;
}

Result<Agreement> Agreements::agree(const AgreeOptions& options, UniformMode* uniform) {
  if (membership_.job_context == nullptr) {
    return Error{
        ErrorCode::kUnsupported, ErrorScope::kCall, -1,
        "agree: not supported in a simulation, whose ranks can exchange messages only through their communicator"};
  }
  if (options.timeout.count() < 0) return invalid_argument("agree: the timeout is negative");
  if (uniform != nullptr) TUTTI_TRY(uniform->settle_before_agree(options.timeout));
  auto decision = decide(Topic::kAll, {.operation = engine_.last_good(), .value = options.value}, options.timeout);
  const bool again = !decision && decision.error().code == ErrorCode::kTimeout;
  if (uniform != nullptr && !again) uniform->end_agree();
  if (!decision) return decision.error();
  Agreement agreement{.survivors = {}, .last_operation = decision->operation, .value = decision->value};
  for (std::uint32_t rank = 0; rank < membership_.ranks; ++rank) {
    if (decision->members[rank]) agreement.survivors.push_back(static_cast<std::int32_t>(rank));
  }
  return agreement;
}

}  // namespace tutti::detail
