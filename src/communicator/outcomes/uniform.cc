#include "communicator/outcomes/uniform.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/arguments.h"

namespace tutti::detail {
namespace {

// The vote of a rank on which the call succeeded. If the call failed on a rank, that rank votes with the rank that the
// error names, or with `ranks` + its own rank if the error names none.
constexpr std::int32_t kSucceeded = INT32_MAX;

}  // namespace

Status UniformMode::run(const CollectiveCall& call, const CallOptions& options) {
  const std::scoped_lock lock(mutex_);
  if (calls_ended_) return *calls_ended_;
  Status own = options.uniform ? run_without_vote(call, options) : run_call_(call, options, CallPurpose::kApplication);
  if (!own.ok() && is_refusal(own.error())) return own;  // the call did not happen, so there is nothing to vote on
  if (calls_ == UniformCalls::kAll || options.uniform) return confirm(own, options.timeout);
  if (!own.ok() && own.error().scope != ErrorScope::kCall) static_cast<void>(end_calls(own.error(), false));
  return own;
}

Status UniformMode::run_without_vote(const CollectiveCall& call, const CallOptions& options) {
  CallOptions plain = options;
  plain.uniform = false;
  return run_call_(call, plain, CallPurpose::kApplication);
}

Status UniformMode::confirm(const Status& own, std::chrono::milliseconds timeout) {
  ++count_;
  resolved_ = false;
  Status failure = own;
  if (own.ok() || own.error().scope == ErrorScope::kCall) {
    const auto ranks = static_cast<std::int32_t>(ranks_);
    const auto mine = static_cast<std::int32_t>(rank_);
    // The minimum is taken, so an error that names a rank takes precedence over one that does not.
    const std::int32_t vote = own.ok() ? kSucceeded : own.error().rank >= 0 ? own.error().rank : ranks + mine;
    std::int32_t all = mine;
    const Status voted = run_call_({.kind = CollectiveKind::kAllReduce,
                                    .input = &vote,
                                    .output = &all,
                                    .count = 1,
                                    .type = DataType::kInt32,
                                    .op = ReduceOp::kMin},
                                   {.timeout = std::max(timeout, timeout_)}, CallPurpose::kVote);
    if (voted.ok()) {
      resolved_ = true;
      if (all != kSucceeded) last_failed_call_ = count_;
      if (all == kSucceeded || !own.ok()) return own;
      const std::string where =
          all < ranks ? fmt::format("on another rank because of rank {}", all) : fmt::format("on rank {}", all - ranks);
      return Error{
          ErrorCode::kAborted, ErrorScope::kCall, all < ranks ? all : -1,
          fmt::format(
              "uniform call number {} succeeded on this rank, but failed {}, so it counts as failed on all ranks",
              count_, where)};
    }
    if (own.ok()) failure = voted;
  }
  const auto well = end_calls(failure.error(), own.ok());
  if (well && *well) return {};
  return *calls_ended_;  // `failure`, with the scope of the communicator
}

Result<bool> UniformMode::end_calls(const Error& reason, bool own_ok) {
  calls_ended_ = reason;
  calls_ended_->scope = std::max(reason.scope, ErrorScope::kCommunicator);
  announce_end_(*calls_ended_);
  return settle(own_ok, std::chrono::milliseconds(0));
}

Result<bool> UniformMode::settle(bool own_ok, std::chrono::milliseconds timeout) {
  const std::int64_t position = resolved_ ? count_ + 1 : count_;
  const bool failed_before = last_failed_call_ == position - 1;
  const auto decision = decide_({.operation = 2 * static_cast<std::uint64_t>(position) + (own_ok ? 1 : 0),
                                 .value = -(4 * position + (failed_before && last_failed_call_ > 0 ? 2 : 0) +
                                            (resolved_ && !calls_ended_ ? 0 : 1))},
                                timeout);
  if (!decision) {
    settled_ = calls_ended_ && decision.error().code == ErrorCode::kRefused;
    return decision.error();
  }
  const auto least = static_cast<std::int64_t>(decision->operation / 2);
  const std::int64_t most = -decision->value / 4;
  const bool all_succeeded = decision->operation % 2 == 1;
  const bool known_failed = -decision->value / 2 % 2 == 1;
  const bool some_rank_lacks_outcome = least != most || -decision->value % 2 == 1;
  settled_ = some_rank_lacks_outcome;
  if (some_rank_lacks_outcome && !calls_ended_) {
    calls_ended_ =
        Error{ErrorCode::kAborted, ErrorScope::kCommunicator, -1,
              "the last uniform call could not be confirmed on some rank, and the survivors have agreed on how it "
              "ended: the communicator takes no more; shrink it"};
  }
  if (resolved_) return last_failed_call_ != count_;
  const bool well = position == least && (most == least ? all_succeeded : !known_failed);
  resolved_ = true;
  if (!well) last_failed_call_ = count_;
  return well;
}

Status UniformMode::settle_before_agree(std::chrono::milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  if (settled_ || agreeing_) return {};
  const auto settled = settle(false, timeout);
  if (!settled) return settled.error();
  agreeing_ = true;
  return {};
}

void UniformMode::end_agree() {
  const std::scoped_lock lock(mutex_);
  agreeing_ = false;
}

}  // namespace tutti::detail
