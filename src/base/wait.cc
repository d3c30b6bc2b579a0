#include "base/wait.h"

#include <sched.h>

#include <algorithm>
#include <utility>

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

}  // namespace

WaitLimits wait_limits(std::uint32_t ranks, std::uint32_t cores) {
  if (ranks <= cores) return {.spins = 2000, .yields = 1000};
  return {.spins = 2, .yields = 100};
}

AdaptiveWaiter::AdaptiveWaiter(WaitLimits limits)
    : limits_(limits),
      spins_(limits.spins),
      yields_(limits.yields),
      learnt_(limits),
      probe_interval_(kFirstProbeInterval) {}

void AdaptiveWaiter::pause(Idle& idle, Doorbell& doorbell, std::int64_t max_sleep_ns) {
  const std::uint32_t round = idle.rounds++;
  if (round < spins_) {
    relax();
  } else if (round - spins_ < yields_) {
    sched_yield();
  } else if (!idle.armed) {
    doorbell.arm();  // the caller polls once more before the sleep
    idle.armed = true;
  } else {
    const std::int64_t wish_ns = kFirstSleepNs << std::min<std::uint32_t>(idle.sleeps, 16);
    doorbell.sleep(std::min(wish_ns, max_sleep_ns));
    idle.armed = false;
    ++idle.sleeps;
  }
}

void AdaptiveWaiter::ended(const Idle& idle) {
  const auto learn = [](std::uint32_t& value, bool paid, std::uint32_t least, std::uint32_t most) {
    value = paid ? std::min(value * 2, most) : std::max(value / 2, std::min(most, least));
  };
  const bool slept = idle.sleeps > 0 || idle.armed;
  if (std::exchange(probing_, false)) {
    probe_interval_ = slept ? std::min(2 * probe_interval_, kMaxProbeInterval) : kFirstProbeInterval;
    if (slept) {
      spins_ = learnt_.spins;
      yields_ = learnt_.yields;
      return;
    }
  }
  if (idle.rounds > spins_) learn(yields_, !slept, kFewestYields, limits_.yields);
  learn(spins_, idle.rounds <= spins_, kFewestSpins, limits_.spins);
  if (!slept || ++slept_waits_ < probe_interval_) return;
  slept_waits_ = 0;
  probing_ = true;
  learnt_ = {.spins = spins_, .yields = yields_};
  spins_ = limits_.spins;
  yields_ = limits_.yields;
}

}  // namespace tutti
