// FailureState: records whether a communicator is still usable: the error that broke it, whether abort() was called
// on this rank, and whether the peers have been notified. The class has no threads or locks; each function states
// which lock it needs.
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

  // The error that made the communicator unusable; empty if it is usable. Hold the engine's mutex.
  const std::optional<Error>& broken() const { return broken_; }
  // Makes the communicator unusable, with this error. Has no effect if it is already broken. Hold the engine's
  // mutex.
  void set_broken(const Error& error) noexcept;

  // True after abort() or abort_remaining() was called on this rank. Any thread may call it.
  bool aborted(std::memory_order order = std::memory_order_relaxed) const { return aborted_.load(order); }
  // Breaks the communicator, unless it is broken already, makes all operations in progress end (with kAborted, or with
  // the error that broke the communicator before), and notifies the peers. Any thread may call it. `mutex`: the
  // engine's mutex, which the caller must not hold, because the function locks it for a moment.
  void abort(std::mutex& mutex) noexcept;
  // Called when the engine is destroyed: makes all operations in progress end (with kAborted, or with broken()), and
  // notifies the peers. Unlike abort(), does not set broken(). Hold the engine's mutex.
  void abort_remaining() noexcept;

  // Notifies the peers that this rank makes no more calls because of an error, abort() or abort_remaining(), and wakes
  // the driver. If the transport throws, for example because there is no memory, announce_again() tries again later.
  // Any thread may call it.
  void announce_abort() noexcept;
  // Tries again if the last announce_abort() could not notify the peers; otherwise has no effect. Any thread may call
  // it. Engine::submit() and the engine's destructor do.
  void announce_again() noexcept {
    if (abort_unannounced_.load(std::memory_order_relaxed)) announce_abort();
  }

 private:
  Transport& transport_;
  Recorder* const recorder_;
  std::atomic<bool> aborted_{false};
  // The last announce_abort() could not notify the peers.
  std::atomic<bool> abort_unannounced_{false};
  std::optional<Error> broken_;
};

}  // namespace tutti
