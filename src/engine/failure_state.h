// FailureState: whether a communicator is still usable: the error that broke it, whether abort() was called on this
// rank, and whether the peers have been notified. It has no threads or locks; each function states which lock it needs.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "job/recorder.h"
#include "transports/transport.h"
#include "tutti/result.h"

namespace tutti {

class FailureState {
 public:
  // `transport` and `recorder` must outlive this object. `recorder` may be null.
  FailureState(Transport& transport, Recorder* recorder) : transport_(transport), recorder_(recorder) {}

  // The error that made the communicator unusable, if there is one. Hold the engine's mutex.
  const std::optional<Error>& broken() const { return broken_; }
  // Makes the communicator unusable. Only the first error counts. Hold the engine's mutex.
  void set_broken(const Error& error) noexcept;

  // True after an abort() of this rank. Any thread may call it.
  bool aborted(std::memory_order order = std::memory_order_relaxed) const { return aborted_.load(order); }
  // Breaks the communicator, and makes all operations in progress end with kAborted. Any thread may call it without
  // the mutex of the engine, which it locks for a moment.
  void abort(std::mutex& mutex) noexcept;
  // Makes all operations in progress end with kAborted, because the engine ends. Hold the engine's mutex.
  void abort_remaining() noexcept;

  // Notifies the peers that this rank has given up, and wakes the driver. The transport may be unable to notify the
  // peers if it has no memory. Any thread may call it.
  void announce_abort() noexcept;
  // Tries again if announce_abort() could not notify the peers.
  void announce_again() noexcept {
    if (abort_unannounced_.load(std::memory_order_relaxed)) announce_abort();
  }

 private:
  Transport& transport_;
  Recorder* const recorder_;
  std::atomic<bool> aborted_{false};
  // This rank has given up, but its peers could not be notified yet.
  std::atomic<bool> abort_unannounced_{false};
  std::optional<Error> broken_;
};

}  // namespace tutti
