// The time limit of all tests for events that must happen.
//
// A test never sleeps until another thread or process "must be done". It waits for a state or an event, and fails
// after patience(). The limit is long, because a machine may be busy and sanitizers are slow. This costs no time if
// the test passes. patience.sh and patience.py have the same limit for shell and Python tests.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdlib>
#include <thread>

namespace tutti::test {

// The factor by which this build may be slower than a normal one, times TUTTI_TEST_PATIENCE (default 1), which slow
// machines can set.
inline double patience_factor() {
#if defined(__SANITIZE_THREAD__)
  constexpr double kBuild = 10;
#elif defined(__SANITIZE_ADDRESS__)
  constexpr double kBuild = 5;
#else
  constexpr double kBuild = 1;
#endif
  const char* const text = std::getenv("TUTTI_TEST_PATIENCE");
  const double asked = text == nullptr ? 1 : std::strtod(text, nullptr);
  return kBuild * (asked > 0 ? asked : 1);
}

// For time limits that a passing test reaches, for example the timeout of a call that must time out. `time` is the
// time that the test needs on a machine without other load; the result is longer in slow builds.
inline std::chrono::milliseconds scaled(std::chrono::milliseconds time) {
  return std::chrono::milliseconds(
      static_cast<std::chrono::milliseconds::rep>(static_cast<double>(time.count()) * patience_factor()));
}

// The time limit for everything else. Only a test that hangs reaches it.
inline std::chrono::milliseconds patience() { return scaled(std::chrono::seconds(30)); }

// Waits until done() is true. Returns false if it is still false after patience().
bool eventually(std::predicate auto&& done) {
  const auto latest = std::chrono::steady_clock::now() + patience();
  while (!done()) {
    if (std::chrono::steady_clock::now() > latest) return done();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tutti::test
