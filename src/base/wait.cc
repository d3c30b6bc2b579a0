#include "base/wait.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/system/time_slice.h"

namespace tutti {
namespace {

constexpr std::uint32_t kFewestSpins = 10;
constexpr std::uint32_t kFewestYields = 3;  // with 3 yields, the other threads of the core usually run once
// The first probe follows after this many waits that armed the doorbell (most of them also slept). The number doubles
// after each failed probe, up to kMaxProbeInterval. A successful probe resets it.
constexpr std::uint32_t kFirstProbeInterval = 16;
constexpr std::uint32_t kMaxProbeInterval = 1024;
// Length of the first sleep of a wait. It doubles with each further sleep of this wait, up to the caller's maximum.
constexpr std::int64_t kFirstSleepNs = 1'000'000;
// The yields of one in so many waits that yield are measured, because the clock takes a tenth of the time of a yield to
// another rank. The number is odd, so that it is no multiple of the number of waits in a call.
constexpr std::uint32_t kWaitsPerMeasurement = 63;
constexpr std::uint32_t kUnmeasuredYields = 16;  // further yields of a wait are always measured
constexpr std::uint32_t kWaitsOfSuspicion = 16;  // after a long yield, so many waits that yield are measured as well
// What a probe needs to show that the core is not lost any more: 16 waits that yield, or 1,024 that end while they
// spin. The latter prove less: only that the awaited ranks keep their cores.
constexpr std::uint32_t kProofByYields = 64;
constexpr std::uint32_t kFullProof = 1024;
// The time slice that is assumed if the kernel does not tell it. Linux's own is longer on more than two cores.
constexpr std::int64_t kDefaultSliceNs = 1'400'000;

// Doubles a number of rounds that paid, up to `most`, and halves one that did not, down to `least`.
void learn(std::uint32_t& rounds, bool paid, std::uint32_t least, std::uint32_t most) {
  rounds = paid ? std::min(rounds * 2, most) : std::max(rounds / 2, std::min(most, least));
}

}  // namespace

WaitLimits wait_limits(std::uint32_t ranks, std::uint32_t cores) {
  if (ranks <= cores) return {.spins = 2000, .yields = 1000};
  return {.spins = 2, .yields = 100};
}

void CoreScheduler::yield() { sched_yield(); }

std::int64_t CoreScheduler::now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::int64_t CoreScheduler::usual_time_slice_ns() { return tutti::usual_time_slice_ns(); }

void CoreScheduler::shorten_time_slice() { tutti::shorten_time_slice(); }

void CoreScheduler::restore_time_slice() { tutti::restore_time_slice(); }

AdaptiveWaiter::AdaptiveWaiter(WaitLimits limits) : AdaptiveWaiter(limits, std::make_unique<CoreScheduler>()) {}

AdaptiveWaiter::AdaptiveWaiter(WaitLimits limits, std::unique_ptr<CoreScheduler> scheduler)
    : scheduler_(std::move(scheduler)),
      limits_(limits),
      spins_(limits.spins),
      yields_(limits.yields),
      learnt_(limits),
      probe_interval_(kFirstProbeInterval) {}

AdaptiveWaiter::~AdaptiveWaiter() { scheduler_->restore_time_slice(); }

void AdaptiveWaiter::pause(Idle& idle, Doorbell& doorbell, std::int64_t max_sleep_ns) {
  const std::uint32_t round = idle.rounds++;
  if (round < spins_) {
    relax();
  } else if (round - spins_ < yields_ && !idle.must_sleep) {
    yield(idle);
  } else if (!idle.armed) {
    doorbell.arm();  // the caller polls once more before the sleep
    idle.armed = true;
  } else {
    if (idle.must_sleep || (core_is_lost_ && !probing_)) scheduler_->shorten_time_slice();
    const std::int64_t wish_ns = kFirstSleepNs << std::min<std::uint32_t>(idle.sleeps, 16);
    doorbell.sleep(std::min(wish_ns, max_sleep_ns));
    idle.armed = false;
    ++idle.sleeps;
  }
}

void AdaptiveWaiter::yield(Idle& idle) {
  if (!measures_yields_ && idle.rounds - spins_ <= kUnmeasuredYields) return scheduler_->yield();
  const std::int64_t before_ns = idle.yielded_at_ns != 0 ? idle.yielded_at_ns : scheduler_->now_ns();
  scheduler_->yield();
  idle.yielded_at_ns = scheduler_->now_ns();
  const std::int64_t took_ns = idle.yielded_at_ns - before_ns;
  if (took_ns <= kShortestTimeSliceNs / 2) return;  // so the next call is rare, because it makes a system call
  const std::int64_t slice_ns = scheduler_->usual_time_slice_ns();
  if (took_ns <= (slice_ns > 0 ? slice_ns : kDefaultSliceNs) / 2) return;
  idle.must_sleep = ++idle.long_yields > 1 || suspicion_ > 0 || core_is_lost_;
}

void AdaptiveWaiter::ended(const Idle& idle) {
  if (core_is_lost_ || idle.must_sleep) return ended_without_core(idle);
  const bool slept = idle.sleeps > 0 || idle.armed;
  const bool yielded = idle.rounds > spins_;
  if (std::exchange(probing_, false)) {
    probe_interval_ = slept ? std::min(2 * probe_interval_, kMaxProbeInterval) : kFirstProbeInterval;
    if (slept) {
      spins_ = learnt_.spins;
      yields_ = learnt_.yields;
      return;
    }
  }
  if (yielded) {
    learn(yields_, !slept, kFewestYields, limits_.yields);
    // Another thread may have ended the probe, and then this one still has the short slice.
    if (measures_yields_) scheduler_->restore_time_slice();
    suspicion_ = idle.long_yields > 0 ? kWaitsOfSuspicion : std::max(suspicion_, 1U) - 1;
    measures_yields_ = ++yielded_waits_ % kWaitsPerMeasurement == 0 || suspicion_ > 0;
  }
  learn(spins_, !yielded, kFewestSpins, limits_.spins);
  if (slept && ++waits_since_probe_ >= probe_interval_) begin_probe();
}

void AdaptiveWaiter::ended_without_core(const Idle& idle) {
  const bool outlasted_spins = idle.rounds > spins_;
  if (idle.must_sleep) {
    probe_interval_ = core_is_lost_ ? std::min(2 * probe_interval_, kMaxProbeInterval) : kFirstProbeInterval;
    waits_since_probe_ = 0;
    core_is_lost_ = true;
    if (std::exchange(probing_, false)) spins_ = learnt_.spins;
    yields_ = 0;
  } else if (!probing_) {
    learn(spins_, !outlasted_spins, kFewestSpins, limits_.spins);
    if (++waits_since_probe_ >= probe_interval_) begin_probe();
  } else {
    proof_ += outlasted_spins ? kProofByYields : 1;
    if (proof_ < kFullProof) return;  // the probe goes on with the next wait
    probing_ = false;
    core_is_lost_ = false;
    suspicion_ = 0;
    probe_interval_ = kFirstProbeInterval;
  }
}

void AdaptiveWaiter::begin_probe() {
  waits_since_probe_ = 0;
  probing_ = true;
  measures_yields_ = true;
  learnt_ = {.spins = spins_, .yields = yields_};
  spins_ = limits_.spins;
  yields_ = limits_.yields;
  proof_ = 0;
  // The probe must show how this thread fares with its usual slice.
  if (core_is_lost_) scheduler_->restore_time_slice();
}

}  // namespace tutti
