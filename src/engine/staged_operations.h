// StagedOperations: the operations that wait for a stream of the caller (StartCondition), and the long calls that
// are divided into segments (segments.h). This class decides whether such an operation may start, and handles
// operations that never start because their stream is lost or an earlier segment of their call failed.
//
// The class has no threads or locks. Only the engine's driver uses it.
#pragma once

#include <optional>

#include "engine/engine_state.h"
#include "engine/operation.h"

namespace tutti {

class StagedOperations {
 public:
  // `context` must outlive this object.
  explicit StagedOperations(const EngineContext& context) : context_(context) {}

  // False if the operation must wait, because its stream has not reached it yet. True for an operation without a
  // stream.
  static bool may_start(const Operation& operation) {
    return operation.start_condition == nullptr || operation.start_condition->open();
  }
  // True if `operation` is a segment that must not start, because an earlier segment of the same call has failed. This
  // assumes that no other queued collective ends between two segments of a call. All later segments fail as well, so it
  // suffices to remember how the last collective ended.
  bool call_has_failed(const Operation& operation) const { return operation.follows && last_error_.has_value(); }
  // Ends a segment for which call_has_failed() is true, and returns the error of the earlier segment. Publishes on
  // this rank's board that the segment was entered and has failed, so that its sequence number is used and the
  // peers are notified.
  Error drop(const Operation& operation);
  // Checks an operation that has not started. If its stream can never reach it, for example because the GPU's
  // context is lost, notifies the peers that this rank takes part no more, and returns the error. Otherwise returns
  // nothing.
  std::optional<Error> find_lost_stream(const Operation& operation);
  // The same for an operation that is about to start or runs, if its guard has found a failure.
  std::optional<Error> ask_guard(const Operation& operation);
  // Call it with the error of each operation that has failed. If the error is a mismatch of a call that some rank
  // may have divided into segments, ranks may have divided it into different numbers of segments, each with a
  // sequence number of its own, and so their later calls would not match. Therefore the scope of `error` becomes
  // kCommunicator, and the peers are notified.
  void escalate_mismatch(const Operation& operation, Error& error);
  // Call it at the end of each operation, in the order in which they end. Passes the result to the operation's stream,
  // and an error also to its guard, if it has them. If call_has_failed() was the reason why the operation did not
  // start, its stream gets dropped() instead of the result.
  void report_end(const Operation& operation, const Status& result) noexcept;

 private:
  Error take_no_part(const Operation& operation, Error error);

  const EngineContext& context_;
  // The error of the queued collective that ended last; empty if it succeeded, or if none has ended.
  std::optional<Error> last_error_;
};

}  // namespace tutti
