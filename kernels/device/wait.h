// Waiting in device code. Every loop that waits for another block or rank uses a WaitTimer, so that it also ends
// without success: after a failure or an abort, and at the bounds of the call if it has any.
#pragma once

#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/port.h"

namespace tutti::device {

enum class Outcome : std::uint32_t {
  kReady = 0,
  kStopped = 1,   // stop_after_ns has passed; another launch may resume the block
  kAborted = 2,   // the host has set RankStatus::abort
  kTimedOut = 3,  // timeout_ns has passed
  kGivenUp = 4,   // this rank has recorded a failure, or another thread of the warp has ended its wait
  kFailed = 5,    // this block has failed
};

struct Bounds {
  const RankStatus* status;
  std::uint64_t stop_after_ns;  // after this time the wait ends with kStopped; kForever: the wait must not stop
  std::uint64_t timeout_ns;
};

// A waiting loop reads the status flags and the clock only once in kSpinsPerLook iterations, because these reads are
// slow.
inline constexpr unsigned kSpinsPerLook = 64;

// Measures the time of one waiting loop of one thread. Threads of a warp that wait together may get different results.
class WaitTimer {
 public:
  TUTTI_DEVICE explicit WaitTimer(const Bounds& bounds) : bounds_(bounds) {}

  // Called after each check without success. Returns kReady if the loop must continue to wait, otherwise the reason why
  // it must end.
  TUTTI_DEVICE Outcome check(port::Site site) {
    if (bounds_.stop_after_ns == 0) return Outcome::kStopped;
    port::pause(site);
    if (++spins_ % kSpinsPerLook != 0) return Outcome::kReady;
    if (port::load_relaxed(&bounds_.status->abort, site) != 0) return Outcome::kAborted;
    if (port::load_relaxed(&bounds_.status->failure, site) != 0) return Outcome::kGivenUp;
    const std::uint64_t now = port::now_ns();
    if (start_ns_ == 0) start_ns_ = now;
    if (now - start_ns_ >= bounds_.timeout_ns) return Outcome::kTimedOut;
    if (now - start_ns_ >= bounds_.stop_after_ns) return Outcome::kStopped;
    return Outcome::kReady;
  }

  // Starts the measurement again. Called when the awaited event has happened and the loop goes on to wait for another
  // event.
  TUTTI_DEVICE void restart() { start_ns_ = 0; }

 private:
  const Bounds bounds_;
  std::uint64_t start_ns_ = 0;
  unsigned spins_ = 0;
};

// Waits until `ready()` returns true, until a bound is reached, or until this rank has failed or is aborted.
template <class Ready>
TUTTI_DEVICE Outcome wait_until(const Bounds& bounds, Ready ready, port::Site site = port::Site::current()) {
  WaitTimer timer(bounds);
  while (!ready()) {
    const Outcome outcome = timer.check(site);
    if (outcome != Outcome::kReady) return outcome;
  }
  return Outcome::kReady;
}

}  // namespace tutti::device
