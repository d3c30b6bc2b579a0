// Calls that end alike on all ranks: after each one a short all-reduce in which every rank says how it went. Where that
// cannot be carried out any more, those that live settle by agreement how the call has ended; then there are no more
// calls. agree() settles first, too, so that all have had the same agreements, whoever learns of the end in a call and
// who afterwards.
//
// Ranks stand at the same call or at two in a row: who has voted, knows how the call ended, as all do that have; who
// has not, does not. A rank's position is the number of the call of which it does not know, or of its next one. What
// they tell, two numbers of which the consensus gives the least:
//   operation: 2 * position, and 1 more where this rank's part of that call went well
//   value: minus (4 * position, 2 more where it knows that the call before failed, 1 more where it does not know of
//   one)
// So the least position A and the greatest K are known. Who stands at A: where K is A, nobody knows, and the call ended
// well if every part did; where K is A + 1, the ranks there know. Who stands at A + 1 while others are at A has failed:
// these do not make that call any more.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "communicator/communicator_impl.h"
#include "membership/consensus.h"

namespace tutti::detail {
namespace {

constexpr std::int32_t kWell = INT32_MAX;  // of a vote; else: who is to blame, or where nobody is named, see below

}  // namespace

Status CommunicatorImpl::run(const CollectiveCall& call, const CallOptions& options) {
  if (!uniform_ || options.stream) return run_plain(call, options);
  const std::scoped_lock lock(uniform_mutex_);
  if (calls_ended_) return *calls_ended_;
  const Status own = run_plain(call, options);
  const bool happened = own.ok() || own.error().code != ErrorCode::kInvalidArgument;
  return happened ? confirm(own) : own;
}

Status CommunicatorImpl::confirm(const Status& own) {
  ++calls_;
  resolved_ = false;
  Status failure = own;
  if (own.ok() || own.error().scope == ErrorScope::kCall) {
    const auto ranks = static_cast<std::int32_t>(ranks_);
    const auto mine = static_cast<std::int32_t>(rank_);
    // Whoever is named goes before who only failed.
    const std::int32_t vote = own.ok() ? kWell : own.error().rank >= 0 ? own.error().rank : ranks + mine;
    std::int32_t all = mine;
    const Status voted = run_plain({.kind = CollectiveKind::kAllReduce,
                                    .input = &vote,
                                    .output = &all,
                                    .count = 1,
                                    .type = DataType::kInt32,
                                    .op = ReduceOp::kMin},
                                   {});
    if (voted.ok()) {
      resolved_ = true;
      if (all != kWell) last_bad_ = calls_;
      if (all == kWell || !own.ok()) return own;
      const std::string where = all < ranks ? fmt::format("elsewhere; rank {} is to blame", all)
                                            : fmt::format("on rank {}, which names nobody", all - ranks);
      return Error{ErrorCode::kAborted, ErrorScope::kCall, all < ranks ? all : -1,
                   fmt::format("call {}: it went well here, and failed {}: so it has failed", calls_, where)};
    }
    if (own.ok()) failure = voted;
  }
  calls_ended_ = failure.error();
  calls_ended_->scope = std::max(calls_ended_->scope, ErrorScope::kCommunicator);
  const auto well = settle(own.ok(), std::chrono::milliseconds(0));
  if (well && *well) return {};
  return failure;
}

// Whether the last call ended well. Errors: those of agree().
Result<bool> CommunicatorImpl::settle(bool own_ok, std::chrono::milliseconds patience) {
  const std::int64_t position = resolved_ ? calls_ + 1 : calls_;
  const bool failed_before = last_bad_ == position - 1;
  const auto decision =
      confer(Matter::kCalls,
             {.operation = 2 * static_cast<std::uint64_t>(position) + (own_ok ? 1 : 0),
              .value = -(4 * position + (failed_before && last_bad_ > 0 ? 2 : 0) + (resolved_ ? 0 : 1))},
             patience);
  if (!decision) {
    settled_ = calls_ended_ && decision.error().code == ErrorCode::kRefused;
    return decision.error();
  }
  const auto least = static_cast<std::int64_t>(decision->operation / 2);
  const std::int64_t most = -decision->value / 4;
  const bool all_well = decision->operation % 2 == 1;
  const bool known_bad = -decision->value / 2 % 2 == 1;
  const bool somebody_does_not_know = least != most || -decision->value % 2 == 1;
  settled_ = somebody_does_not_know;
  if (somebody_does_not_know && !calls_ended_) {
    calls_ended_ = Error{ErrorCode::kAborted, ErrorScope::kCommunicator, -1,
                         "the last call could not be confirmed on some rank, and the survivors have agreed on how it "
                         "ended: the communicator takes no more; shrink it"};
  }
  if (resolved_) return last_bad_ != calls_;
  const bool well = position == least && (most == least ? all_well : !known_bad);
  resolved_ = true;
  if (!well) last_bad_ = calls_;
  return well;
}

// Before an agreement of the application's.
Status CommunicatorImpl::settle_before(std::chrono::milliseconds patience) {
  if (!uniform_) return {};
  const std::scoped_lock lock(uniform_mutex_);
  if (settled_ || agreeing_) return {};
  const auto settled = settle(false, patience);
  if (!settled) return settled.error();
  agreeing_ = true;
  return {};
}

}  // namespace tutti::detail
