// StartCondition: the condition under which an operation may start, and the receiver of its result. An object stands
// for a call's position in the caller's stream. The engine uses GPUs and streams only through this interface. The
// operation and the users of the stream (callbacks or a LaunchGroup) share the object, because either may exist longer.
// Each function states which threads may call it.
#pragma once

#include <optional>

#include "tutti/result.h"

namespace tutti {

class StartCondition {
 public:
  virtual ~StartCondition() = default;
  // True if the operation may start, because the stream has reached it and its input is complete. Any thread may
  // call it.
  virtual bool open() const = 0;
  // The driver calls it from time to time while open() is false. Returns an error if open() will never become true,
  // because the stream can never reach the call. Otherwise returns nothing.
  virtual std::optional<Error> lost() = 0;
  // The driver calls it with the result when an operation with this condition has ended. Each replay of a captured call
  // is an operation of its own. If a stream's callback cannot submit an operation, the callback calls ended() instead
  // of the driver.
  virtual void ended(const Status& result) noexcept = 0;
  // The driver calls it instead of ended() if the operation never started because an earlier segment of the same
  // call failed.
  virtual void dropped() noexcept = 0;
  // True if the stream has done the work of the call, such as the copy of the output to the GPU, or will never do it.
  // Also true for a call that a graph has captured, because that call runs only in replays. Any thread may call it.
  virtual bool finished() = 0;
  // The result of the work that finished() describes; valid when finished() is true. Any thread may call it.
  virtual Status outcome() = 0;
};

}  // namespace tutti
