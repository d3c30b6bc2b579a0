// Waiter: how a thread waits for peers. AdaptiveWaiter first spins for about the time that a running peer needs to
// answer, then yields the core, and then sleeps on a Doorbell. See docs/decisions/0004-waiting.md.
//
// The caller polls. Each time a poll finds nothing, the caller calls Waiter::pause() once; after progress it calls
// Waiter::reset(). The waiter never decides whether a wait has ended: between two pauses the caller checks the
// deadline, abort(), and whether peers have died.
#pragma once

#include <cstdint>
#include <memory>

namespace tutti {

// Wakes a sleeping rank. An armed doorbell remembers every ring until sleep() or disarm(), so that a rank that arms
// it, polls once more and then sleeps cannot miss a ring. One thread waits; ring() may be called by any rank and any
// thread.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  virtual void arm() = 0;
  virtual void disarm() = 0;
  // Returns after a ring or the timeout, or perhaps earlier, for example after a signal, and disarms.
  virtual void sleep(std::int64_t timeout_ns) = 0;
  virtual void ring() = 0;  // may be called from any thread
};

// The state of one wait. Owned by the waiting thread.
struct Idle {
  std::uint32_t rounds = 0;        // pauses since the last progress
  std::uint32_t sleeps = 0;        // how many of these pauses slept on the doorbell
  bool armed = false;              // the doorbell is armed
  std::uint32_t long_yields = 0;   // how many of these pauses were long yields; see AdaptiveWaiter
  bool must_sleep = false;         // its long yields have shown that the core is lost, so this wait yields no more
  std::int64_t yielded_at_ns = 0;  // when the last measured yield ended
};

// Called between two polls of a spinning wait. It saves power, and leaves resources to the core's other hardware
// thread.
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
  // How many polls a wait currently spins before it yields the core.
  virtual std::uint32_t spins() const { return 0; }
  // Called when a poll found nothing. Relaxes, yields, arms the doorbell or sleeps, depending on the number of pauses
  // of this wait. Sleeps at most `max_sleep_ns` nanoseconds.
  virtual void pause(Idle& idle, Doorbell& doorbell, std::int64_t max_sleep_ns) = 0;
  // Called after progress. Ends the wait, so that the next pause() is the first one of a new wait and spins again.
  void reset(Idle& idle, Doorbell& doorbell) {
    if (idle.armed) doorbell.disarm();
    if (idle.rounds > 0) ended(idle);
    idle = {};
  }

 protected:
  // Called at the end of a wait of at least one round, for waiters that adapt to the length of waits.
  virtual void ended(const Idle&) {}
};

// The number of rounds that a wait spins, and then yields, before it sleeps.
struct WaitLimits {
  std::uint32_t spins = 2000;
  std::uint32_t yields = 100;
};

// The limits for `ranks` ranks that share `cores` cores. With one core for each rank, a running peer answers while
// this rank spins. With more ranks than cores, the awaited peer probably needs the core of this rank, so the wait
// yields the core after a few polls.
WaitLimits wait_limits(std::uint32_t ranks, std::uint32_t cores);

// What AdaptiveWaiter asks of the scheduler. Tests replace it.
class CoreScheduler {
 public:
  virtual ~CoreScheduler() = default;
  virtual void yield();
  virtual std::int64_t now_ns();
  // The time slice of the calling thread, in nanoseconds, and the requests to change it (base/system/time_slice.h).
  virtual std::int64_t usual_time_slice_ns();
  virtual void shorten_time_slice();
  virtual void restore_time_slice();
};

// Adapts the number of spins and yields to their success. They can be useless for two reasons. A peer that shares this
// core (because other programs use the other cores) cannot answer while this rank spins. And a yield gives the core
// only to threads of the same scheduling group: on Linux every session is such a group, so ranks that were started by
// setsid must sleep to let each other run. So a wait that lasts longer than the spins or the yields halves their
// number, down to a small minimum, and a wait that ends during them doubles it, up to the limit.
//
// A yield is worse than useless if the core goes to a thread that computes and waits for nobody: that thread keeps it
// for a whole time slice, some milliseconds. The wait then usually ends during its yields, as if they had been of use.
// So the waiter measures the yields of some waits. If one of them is long, which is more than half of a time slice, and
// so is another one in the same wait or soon afterwards, the core is lost: this wait sleeps, and later waits do not
// yield. (A single long yield means little. A thread of another session may take the core at any time, and then yields
// are not the reason.) A thread that sleeps while the core is lost asks for a short time slice, so that the scheduler
// prefers it to such threads when it is woken.
//
// After several long waits the numbers would otherwise stay too low for short waits to succeed. So now and then a wait
// probes: it spins and yields up to the full limits. If a probe fails, the next one follows after twice as many waits,
// up to a maximum. While the core is lost, a probe consists of several waits. One short yield would not show that the
// core is back, because the yield may have given the core to another rank, which soon yields, too. The first long yield
// ends the probe.
class AdaptiveWaiter final : public Waiter {
 public:
  explicit AdaptiveWaiter(WaitLimits limits);
  AdaptiveWaiter(WaitLimits limits, std::unique_ptr<CoreScheduler> scheduler);
  ~AdaptiveWaiter() override;
  void pause(Idle& idle, Doorbell& doorbell, std::int64_t max_sleep_ns) override;
  std::uint32_t spins() const override { return spins_; }
  std::uint32_t yields() const { return yields_; }

 private:
  void ended(const Idle& idle) override;
  void ended_without_core(const Idle& idle);  // if the core was lost in this wait or before it
  void yield(Idle& idle);
  void begin_probe();
  std::unique_ptr<CoreScheduler> scheduler_;
  WaitLimits limits_;
  std::uint32_t spins_;
  std::uint32_t yields_;
  bool probing_ = false;                 // the present wait, or the next one, is a probe or part of one
  WaitLimits learnt_;                    // spins_ and yields_ before the probe; used again if the probe fails
  std::uint32_t waits_since_probe_ = 0;  // that slept, or if the core is lost, all
  std::uint32_t probe_interval_;         // when waits_since_probe_ reaches this number, the next wait is a probe
  std::uint32_t yielded_waits_ = 0;      // number of waits so far that yielded
  bool measures_yields_ = true;          // the present wait, or the next one, measures its yields
  std::uint32_t suspicion_ = 0;          // number of waits in which another long yield means that the core is lost
  bool core_is_lost_ = false;            // until a probe has succeeded, waits sleep instead of yielding
  std::uint32_t proof_ = 0;              // how much the present probe has shown that the core is not lost any more
};

}  // namespace tutti
