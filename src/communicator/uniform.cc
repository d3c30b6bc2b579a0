#include "communicator/uniform.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace tutti::detail {
namespace {

// The vote of a rank on which the call succeeded. If the call failed on a rank, that rank votes with the rank that the
// error names, or with `ranks` + its own rank if the error names none.
constexpr std::int32_t kSucceeded = INT32_MAX;

}  // namespace

Status UniformMode::run(const CollectiveCall& call, const CallOptions& options) {
  const std::scoped_lock lock(mutex_);
  if (calls_ended_) return *calls_ended_;
  const Status own = run_call_(call, options);
  const bool happened = own.ok() || own.error().code != ErrorCode::kInvalidArgument;
  return happened ? confirm(own, options.timeout) : own;
}

Status UniformMode::confirm(const Status& own, std::chrono::milliseconds timeout) {
  ++calls_;
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
                                   {.timeout = std::max(timeout, timeout_)});
    if (voted.ok()) {
      resolved_ = true;
      if (all != kSucceeded) last_failed_call_ = calls_;
      if (all == kSucceeded || !own.ok()) return own;
      const std::string where =
          all < ranks ? fmt::format("on another rank because of rank {}", all) : fmt::format("on rank {}", all - ranks);
      return Error{
          ErrorCode::kAborted, ErrorScope::kCall, all < ranks ? all : -1,
          fmt::format(
              "call {} succeeded on this rank, but failed {}: in the uniform mode it counts as failed on all ranks",
              calls_, where)};
    }
    if (own.ok()) failure = voted;
  }
  calls_ended_ = failure.error();
  calls_ended_->scope = std::max(calls_ended_->scope, ErrorScope::kCommunicator);
  const auto well = settle(own.ok(), std::chrono::milliseconds(0));
  if (well && *well) return {};
  return failure;
}

Result<bool> UniformMode::settle(bool own_ok, std::chrono::milliseconds timeout) {
  const std::int64_t position = resolved_ ? calls_ + 1 : calls_;
  const bool failed_before = last_failed_call_ == position - 1;
  const auto decision =
      decide_({.operation = 2 * static_cast<std::uint64_t>(position) + (own_ok ? 1 : 0),
               .value = -(4 * position + (failed_before && last_failed_call_ > 0 ? 2 : 0) + (resolved_ ? 0 : 1))},
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
    calls_ended_ = Error{ErrorCode::kAborted, ErrorScope::kCommunicator, -1,
                         "the last call could not be confirmed on some rank, and the survivors have agreed on how it "
                         "ended: the communicator takes no more; shrink it"};
  }
  if (resolved_) return last_failed_call_ != calls_;
  const bool well = position == least && (most == least ? all_succeeded : !known_failed);
  resolved_ = true;
  if (!well) last_failed_call_ = calls_;
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
