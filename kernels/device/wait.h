// Waiting in device code: every loop that waits for somebody ends, with what was waited for or with the reason why not.
#pragma once

#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/port.h"

namespace tutti::device {

enum class Outcome : std::uint32_t {
  kReady = 0,
  kStopped = 1,  // patience is used up: to be resumed
  kAborted = 2,
  kTimedOut = 3,
  kGivenUp = 4,  // another block of this rank has failed
  kFailed = 5,   // here
};

struct Bounds {
  const RankStatus* status;
  std::uint64_t patience_ns;  // kForever: a wait that may not stop
  std::uint64_t timeout_ns;
};

inline constexpr unsigned kSpinsPerLook = 64;  // at the flags and the clock, which lie farther away

// One waiting loop's account of the time. The same calls in all lanes of a warp give each lane its own verdict.
class Patience {
 public:
  TUTTI_DEVICE explicit Patience(const Bounds& bounds) : bounds_(bounds) {}

  // After a look that found nothing. kReady: go on looking.
  TUTTI_DEVICE Outcome spent(port::Here here) {
    if (bounds_.patience_ns == 0) return Outcome::kStopped;
    port::pause(here);
    if (++spins_ % kSpinsPerLook != 0) return Outcome::kReady;
    if (port::load_relaxed(&bounds_.status->abort, here) != 0) return Outcome::kAborted;
    if (port::load_relaxed(&bounds_.status->failure, here) != 0) return Outcome::kGivenUp;
    const std::uint64_t now = port::now_ns();
    if (start_ns_ == 0) start_ns_ = now;
    if (now - start_ns_ >= bounds_.timeout_ns) return Outcome::kTimedOut;
    if (now - start_ns_ >= bounds_.patience_ns) return Outcome::kStopped;
    return Outcome::kReady;
  }

 private:
  const Bounds bounds_;
  std::uint64_t start_ns_ = 0;
  unsigned spins_ = 0;
};

// Looks until `ready()` or until a bound is reached.
template <class Ready>
TUTTI_DEVICE Outcome wait_until(const Bounds& bounds, Ready ready, port::Here here = port::Here::current()) {
  Patience patience(bounds);
  while (!ready()) {
    const Outcome outcome = patience.spent(here);
    if (outcome != Outcome::kReady) return outcome;
  }
  return Outcome::kReady;
}

}  // namespace tutti::device
