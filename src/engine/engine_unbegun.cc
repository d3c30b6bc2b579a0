// Operations that never begin, since their stream is lost or an earlier piece of their call failed, and what becomes of
// the communicator when ranks disagree on a call that is cut. By the driver.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine.h"
#include "engine/segments.h"

namespace tutti {

// Of an operation that has not begun: its stream may never come to it. Then this rank is lost to its peers.
std::optional<Error> Engine::look_at_start_condition(Operation& operation) {
  auto error = operation.start_condition == nullptr || operation.start_condition->open()
                   ? std::nullopt
                   : operation.start_condition->lost();
  if (!error) return std::nullopt;
  error->scope = std::max(error->scope, ErrorScope::kCommunicator);
  error->rank = static_cast<std::int32_t>(rank_);
  error->message = fmt::format("{}: {}", describe(operation.call.tag), error->message);
  if (operation.plan != nullptr) {
    environment_.transport->enter_call(operation.call.tag, {});
    environment_.transport->leave_call(operation.call.tag,
                                       CallFailure{.code = ErrorCode::kPeerLost, .culprit = error->rank});
  }
  environment_.transport->announce_abort();
  return error;
}

// A piece whose call has failed already: it takes its place among the calls of all ranks, and the peers are told.
Error Engine::drop(const Operation& operation) {
  const CallTag& tag = operation.call.tag;
  environment_.transport->enter_call(tag, {});
  environment_.transport->leave_call(tag, CallFailure{.code = last_error_->code, .culprit = last_error_->rank});
  return *last_error_;
}

// Ranks that disagree may have taken different numbers of pieces, each with a number of its own, and then their later
// calls do not meet.
void Engine::weigh(const Operation& operation, Error& error) {
  if (segmentation_ == Segmentation::kNone || error.code != ErrorCode::kMismatch || operation.plan == nullptr) return;
  if (error.scope >= ErrorScope::kCommunicator) return;
  bool cut = detail::may_be_segmented(operation.call.tag);
  for (std::uint32_t peer = 0; peer < ranks_ && !cut; ++peer) {
    const auto tag =
        peer == rank_ ? std::nullopt : environment_.transport->peer_call(peer, operation.call.tag.sequence);
    cut = tag && detail::may_be_segmented(*tag);
  }
  if (!cut) return;
  error.scope = ErrorScope::kCommunicator;
  error.message +=
      "; calls as long as this go in pieces, so the ranks are out of step from here on: make a new communicator";
  environment_.transport->announce_abort();
}

}  // namespace tutti
