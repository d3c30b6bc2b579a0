// Clock: the source of time. Code that also runs in simulations (for example the engine and the out-of-band channel)
// takes the time from a Clock that it is given, and not from the system directly, so that a simulation can control it.
// Other code, for example the set-up, the recorder and the transports for RDMA, reads the system's clock.
#pragma once

#include <cstdint>
#include <ctime>

namespace tutti {

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns monotonic nanoseconds since an arbitrary start. Thread-safe in SteadyClock, but not in ActiveTimeClock
  // (membership/oob_channel.h).
  virtual std::int64_t now_ns() = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() override {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
};

}  // namespace tutti
