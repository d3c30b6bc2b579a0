// Operations that never start, because their stream is lost or an earlier segment of their call failed, and the
// failure of a segmented call about which the ranks disagree. Only the driver calls these functions.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine.h"
#include "engine/segments.h"

namespace tutti {

// Checks an operation that has not started. If its stream can never reach it, this rank is lost for its peers.
std::optional<Error> Engine::look_at_start_condition(Operation& operation) {
  auto error = operation.start_condition == nullptr || operation.start_condition->open()
                   ? std::nullopt
                   : operation.start_condition->lost();
  if (!error) return std::nullopt;
  error->scope = std::max(error->scope, ErrorScope::kCommunicator);
  error->rank = static_cast<std::int32_t>(context_.rank);
  error->message = fmt::format("{}: {}", describe(operation.call.tag), error->message);
  if (operation.plan != nullptr) {
    context_.transport.enter_call(operation.call.tag, {});
    context_.transport.leave_call(operation.call.tag,
                                  CallFailure{.code = ErrorCode::kPeerLost, .culprit = error->rank});
  }
  context_.transport.announce_abort();
  return error;
}

// Ends a segment whose call has failed already. It is entered and left like any other call, so that its sequence
// number is used and the peers are notified.
Error Engine::drop(const Operation& operation) {
  const CallTag& tag = operation.call.tag;
  context_.transport.enter_call(tag, {});
  context_.transport.leave_call(tag, CallFailure{.code = last_error_->code, .culprit = last_error_->rank});
  return *last_error_;
}

// If the ranks disagree on a call, they may have divided it into different numbers of segments. Each segment has a
// sequence number, so the later calls of the ranks would not match. Therefore the error breaks the communicator.
void Engine::escalate_mismatch(const Operation& operation, Error& error) {
  if (context_.segmentation == Segmentation::kNone || error.code != ErrorCode::kMismatch || operation.plan == nullptr)
    return;
  if (error.scope >= ErrorScope::kCommunicator) return;
  bool cut = detail::may_be_segmented(operation.call.tag);
  for (std::uint32_t peer = 0; peer < context_.ranks && !cut; ++peer) {
    const auto tag =
        peer == context_.rank ? std::nullopt : context_.transport.peer_call(peer, operation.call.tag.sequence);
    cut = tag && detail::may_be_segmented(*tag);
  }
  if (!cut) return;
  error.scope = ErrorScope::kCommunicator;
  error.message +=
      "; calls of this length are split into segments, so later calls of the ranks no longer match: make a new "
      "communicator";
  context_.transport.announce_abort();
}

}  // namespace tutti
