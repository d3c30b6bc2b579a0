#include "engine/staged_operations.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/exceptions.h"
#include "engine/segments.h"

namespace tutti {

Error StagedOperations::drop(const Operation& operation) {
  const CallTag& tag = operation.call.tag;
  context_.transport.enter_call(tag, {});
  context_.transport.leave_call(tag, CallFailure{.code = last_error_->code, .culprit = last_error_->rank});
  return *last_error_;
}

std::optional<Error> StagedOperations::find_lost_stream(const Operation& operation) {
  auto error = may_start(operation) ? std::nullopt : operation.start_condition->lost();
  if (!error) return std::nullopt;
  return take_no_part(operation, *std::move(error));
}

std::optional<Error> StagedOperations::ask_guard(const Operation& operation) {
  auto error = operation.guard == nullptr ? std::nullopt : operation.guard->find_failure();
  if (!error) return std::nullopt;
  return take_no_part(operation, *std::move(error));
}

// Notifies the peers that this rank takes part no more, because the operation cannot start or go on. Returns the error
// of the operation.
Error StagedOperations::take_no_part(const Operation& operation, Error error) {
  error.scope = std::max(error.scope, ErrorScope::kCommunicator);
  error.rank = static_cast<std::int32_t>(context_.rank);
  error.message = fmt::format("{}: {}", describe(operation.call.tag), error.message);
  if (operation.plan != nullptr) {
    if (!operation.started) context_.transport.enter_call(operation.call.tag, {});
    context_.transport.leave_call(operation.call.tag, CallFailure{.code = ErrorCode::kPeerLost, .culprit = error.rank});
  }
  context_.transport.announce_abort();
  return error;
}

void StagedOperations::escalate_mismatch(const Operation& operation, Error& error) {
  if (context_.segmentation == Segmentation::kNone || error.code != ErrorCode::kMismatch || operation.plan == nullptr) {
    return;
  }
  if (error.scope >= ErrorScope::kCommunicator) return;
  bool segmented = detail::may_be_segmented(operation.call.tag);
  for (std::uint32_t peer = 0; peer < context_.ranks && !segmented; ++peer) {
    const auto tag =
        peer == context_.rank ? std::nullopt : context_.transport.peer_call(peer, operation.call.tag.sequence);
    segmented = tag && detail::may_be_segmented(*tag);
  }
  if (!segmented) return;
  error.scope = ErrorScope::kCommunicator;
  error.message +=
      "; calls of this length are split into segments, so later calls of the ranks no longer match: make a new "
      "communicator";
  context_.transport.announce_abort();
}

void StagedOperations::report_end(const Operation& operation, const Status& result) noexcept {
  const bool dropped = !operation.started && call_has_failed(operation);
  if (!result.ok() && operation.guard != nullptr) operation.guard->failed(result.error());
  if (operation.start_condition != nullptr)
    dropped ? operation.start_condition->dropped() : operation.start_condition->ended(result);
  if (operation.plan != nullptr) last_error_ = result.ok() ? std::nullopt : std::optional(copy_of(result.error()));
}

}  // namespace tutti
