// StartCondition: the condition under which an operation may start, and the receiver of its result. It stands for a
// stream of the caller, and the engine knows GPUs and streams only by this interface. The operation and the stream
// share it, because either may exist longer. Each function states which threads may call it.
#pragma once

#include <optional>

#include "tutti/result.h"

namespace tutti {

class StartCondition {
 public:
  virtual ~StartCondition() = default;
  // True if the operation may start. Any thread may call it.
  virtual bool open() const = 0;
  // The driver calls it from time to time while open() is false. Returns an error if open() will never become true.
  virtual std::optional<Error> lost() = 0;
  // The driver calls it once, when the operation has ended, with or without an error.
  virtual void ended(const Status& result) noexcept = 0;
  // The driver calls it instead of ended() if the operation never started because an earlier segment of the same
  // call failed.
  virtual void dropped() noexcept = 0;
  // True if the work that follows the end of the operation is done, or will never be done. Any thread may call it.
  virtual bool finished() = 0;
  virtual Status outcome() = 0;  // the result of that work; valid when finished() is true
};

}  // namespace tutti
