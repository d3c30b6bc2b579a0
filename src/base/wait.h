// How a wait waits: spin for about the time that a running peer needs, then give the core away, then sleep.
// See docs/decisions/0004-waiting.md.
//
// The caller polls; each time a poll found nothing it calls Waiter::pause once, and Idle::reset after progress. The
// waiter never decides whether a wait has ended: deadline, abort and peers' deaths are the caller's to check between
// two pauses.
#pragma once

#include <cstdint>

namespace tutti {

// What a sleeping rank is woken by. Armed, it remembers every ring until sleep() or disarm(), so that the sequence
// arm - poll once more - sleep loses no ring. One thread waits; any rank and any thread rings.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  virtual void arm() = 0;
  virtual void disarm() = 0;
  virtual void sleep(std::int64_t timeout_ns) = 0;  // returns after a ring, at the latest after the timeout; disarms
  virtual void ring() = 0;                          // from any thread
};

// Where one wait stands. Owned by the waiting thread.
struct Idle {
  std::uint32_t rounds = 0;  // pauses since the last progress
  std::uint32_t sleeps = 0;  // of these, sleeps
  bool armed = false;
};

// Between two polls of a spinning wait: spares the other thread of the core, and power.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Waiter {
 public:
  virtual ~Waiter() = default;
  // How many polls are worth while at the moment before the core is given away.
  virtual std::uint32_t spins() const { return 0; }
  // One poll found nothing: relax, yield or sleep, by how long this wait has lasted. Sleeps at most `max_sleep_ns`.
  virtual void pause(Idle& idle, Doorbell& doorbell, std::int64_t max_sleep_ns) = 0;
  // Progress was made: the next wait starts anew.
  void reset(Idle& idle, Doorbell& doorbell) {
    if (idle.armed) doorbell.disarm();
    if (idle.rounds > 0) ended(idle);
    idle = {};
  }

 protected:
  // A wait of at least one round is over; for waiters that learn.
  virtual void ended(const Idle&) {}
};

// Rounds of each kind before the next, gentler one.
struct WaitLimits {
  std::uint32_t spins = 2000;
  std::uint32_t yields = 100;
};

// For `ranks` ranks that share `cores` cores: with a core for each, a running peer answers within the spins; with more
// ranks than cores the awaited peer probably needs this very core, so it is given away after a few polls.
WaitLimits wait_limits(std::uint32_t ranks, std::uint32_t cores);

// Learns how long spinning and yielding pay: a peer that shares our core (because somebody else keeps the others busy)
// cannot answer while we spin, and a yield hands the core to nobody outside our scheduling group (on Linux every
// session is one, so ranks that were started by setsid must sleep to let each other run). So each wait that outlasts
// the spins or yields halves them, and each that they satisfy doubles them again, up to the limit. What has come down
// after a few long waits would not come up again where short ones need more than is left: now and then, ever more
// rarely where it is in vain, a wait spins and yields as long as it may, to see.
class AdaptiveWaiter final : public Waiter {
 public:
  explicit AdaptiveWaiter(WaitLimits limits);
  void pause(Idle& idle, Doorbell& doorbell, std::int64_t max_sleep_ns) override;
  std::uint32_t spins() const override { return spins_; }
  std::uint32_t yields() const { return yields_; }

 private:
  void ended(const Idle& idle) override;
  WaitLimits limits_;
  std::uint32_t spins_;
  std::uint32_t yields_;
  bool probing_ = false;    // the next wait spins and yields up to the limits
  WaitLimits learnt_;       // before it
  std::uint32_t vain_ = 0;  // waits that slept, since the last probe
  std::uint32_t patience_;  // of these before the next
};

}  // namespace tutti
