// How long a test waits for something that must happen before it fails: one number for all tests.
//
// A test never sleeps so that another thread or process "has surely done it by now". It waits for a state or an event,
// and gives up after patience(). The number is generous, because a machine may be busy and a sanitizer slow, and it
// costs nothing where the test passes. patience.sh and patience.py say the same to shell and Python tests.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdlib>
#include <thread>

namespace tutti::test {

// How much slower than usual this build may be, times TUTTI_TEST_PATIENCE (default 1) for a machine that is slower yet.
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

// For time limits that a passing test does run into, such as the timeout of a call that must time out: as long as the
// test needs on a quiet machine, and longer in slow builds.
inline std::chrono::milliseconds scaled(std::chrono::milliseconds time) {
  return std::chrono::milliseconds(
      static_cast<std::chrono::milliseconds::rep>(static_cast<double>(time.count()) * patience_factor()));
}

// For time limits that only a hanging test runs into.
inline std::chrono::milliseconds patience() { return scaled(std::chrono::seconds(30)); }

// Waits until done() is true. False: it was not within patience().
bool eventually(std::predicate auto&& done) {
  const auto latest = std::chrono::steady_clock::now() + patience();
  while (!done()) {
    if (std::chrono::steady_clock::now() > latest) return done();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tutti::test
