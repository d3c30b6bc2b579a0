// Calls that end alike on all ranks: after each one a short all-reduce in which every rank says how it went. Where that
// cannot be carried out any more, those that live agree on how many calls everyone has carried out.
//
// Why that is right: a rank that returns "well" from the vote knows that all ranks have carried out the call; so all
// that live bring at least its number to the agreement, and whoever missed the end of the vote ends well, too.
#include <fmt/format.h>

#include <cstdint>

#include "runtime/communicator_impl.h"

namespace tutti::detail {
namespace {

constexpr std::int32_t kWell = INT32_MAX;  // else: the rank whose part failed

}  // namespace

Status CommunicatorImpl::run(const CollectiveCall& call, const CallOptions& options) {
  if (!uniform_ || options.stream) return run_plain(call, options);
  const std::scoped_lock lock(uniform_mutex_);
  const Status own = run_plain(call, options);
  const bool happened = own.ok() || own.error().code != ErrorCode::kInvalidArgument;
  return happened ? confirm(own) : own;
}

Status CommunicatorImpl::confirm(const Status& own) {
  ++calls_;
  Status failure = own;
  if (own.ok() || own.error().scope == ErrorScope::kCall) {
    const auto mine = static_cast<std::int32_t>(rank_);
    const std::int32_t vote = own.ok() ? kWell : mine;
    std::int32_t all = mine;
    const Status voted = run_plain({.kind = CollectiveKind::kAllReduce,
                                    .input = &vote,
                                    .output = &all,
                                    .count = 1,
                                    .type = DataType::kInt32,
                                    .op = ReduceOp::kMin},
                                   {});
    if (voted.ok()) {
      if (all == kWell || !own.ok()) return own;
      return Error{ErrorCode::kAborted, ErrorScope::kCall, all,
                   fmt::format("call {}: it went well here, and failed on rank {}: so it has failed", calls_, all)};
    }
    if (own.ok()) failure = voted;
  }
  const auto agreement = agree({.value = own.ok() ? calls_ : calls_ - 1});
  if (agreement && agreement->value >= calls_) return {};
  return failure;
}

}  // namespace tutti::detail
