// StagedOperations: the operations that wait for a stream of the caller (StartCondition), and the long calls that are
// divided into segments (segments.h). It decides whether such an operation may start, and handles operations that never
// start because their stream is lost or an earlier segment of their call failed.
//
// It has no threads or locks. Only the engine's driver uses it.
#pragma once

#include <optional>

#include "engine/engine_state.h"
#include "engine/operation.h"

namespace tutti {

class StagedOperations {
 public:
  // `context` must outlive this object.
  explicit StagedOperations(const EngineContext& context) : context_(context) {}

  // False if the operation must wait, because its stream has not reached it yet.
  static bool may_start(const Operation& operation) {
    return operation.start_condition == nullptr || operation.start_condition->open();
  }
  // True if this is a segment that must not start, because an earlier segment of the same call has failed.
  bool call_has_failed(const Operation& operation) const { return operation.follows && last_error_.has_value(); }
  // Ends a segment whose call has failed, and returns the error of that call. The segment is entered and left like any
  // other call, so that its sequence number is used and the peers are notified.
  Error drop(const Operation& operation);
  // Checks an operation that has not started. If its stream can never reach it, notifies the peers that this rank is
  // lost, and returns the error.
  std::optional<Error> find_lost_stream(const Operation& operation);
  // Call it with the error of each operation that has failed. If the ranks disagree on a call, they may have divided
  // it into different numbers of segments. Each segment has a sequence number, so the later calls of the ranks would
  // not match. Therefore the error then breaks the communicator.
  void escalate_mismatch(const Operation& operation, Error& error);
  // Call it at the end of each operation, in order. Passes the result to the operation's stream.
  void report_end(const Operation& operation, const Status& result) noexcept;

 private:
  const EngineContext& context_;
  std::optional<Error> last_error_;  // of the collective that ended last, if it failed
};

}  // namespace tutti
