// Clock: the source of time. Product code takes the time from a Clock that it is given, and never from the system
// directly, so that the same code also runs under a simulated clock.
#pragma once

#include <cstdint>
#include <ctime>

namespace tutti {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t
  now_ns() = 0;  // monotonic nanoseconds from an arbitrary start; thread-safe, except in ActiveTimeClock
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
