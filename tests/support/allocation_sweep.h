// Tests that make one allocation after the other fail. A trial calls the library in a child process in which the n-th
// `operator new` throws std::bad_alloc. It checks that no rank hangs or crashes, that a successful call has a correct
// result, that an error has a message, that the ranks can continue, and that everything can be destroyed. A sweep
// increases n until a trial ends without reaching its n-th allocation.
//
// The long programs (TUTTI_EVERY_ALLOCATION=1) try every n. The short ones try as many values as fit into a few
// seconds, spread evenly.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "support/failing_allocations.h"
#include "tests/support/patience.h"

#ifndef TUTTI_EVERY_ALLOCATION
#define TUTTI_EVERY_ALLOCATION 0
#endif

namespace tutti::test {

// The exit status of a trial. kReached: success, and the n-th allocation failed. kNotReached: success, with fewer
// than n allocations. The others are faults of the library, except kBadTrial.
enum Outcome : int {
  kReached = 0,
  kNotReached = 10,
  kWrongData = 11,   // a call succeeded, but its result is wrong
  kNoMessage = 12,   // an error has no message
  kLeak = 13,        // leaked memory (only found with the address sanitizer)
  kThrows = 14,      // a public function threw an exception
  kWrongScope = 16,  // the error has the scope of the call, but the communicator cannot be used any more
  kLostGpu = 17,     // the GPU's context is lost, or its stream has an error
  kBadTrial = 15,    // the trial failed before any allocation failed
};

inline const char* describe_outcome(int status) {
  switch (status) {
    case kReached: return "succeeds";
    case kNotReached: return "is not reached";
    case kWrongData: return "gives a wrong result without an error";
    case kNoMessage: return "gives an error without a message";
    case kLeak: return "leaks memory";
    case kWrongScope: return "breaks the communicator, but the error has the scope of the call";
    case kLostGpu: return "loses the GPU";
    case kThrows: return "makes a public function throw an exception";
    case kBadTrial: return "cannot be tried";
    case 128 + SIGALRM: return "hangs";
    default: return "crashes";
  }
}

// Number of trials that run at the same time. It can be large, because most of them wait for a timeout.
inline constexpr std::size_t kTrialsAtOnce = TUTTI_EVERY_ALLOCATION ? 16 : 6;
// Approximate number of trials in a short sweep.
inline constexpr std::int64_t kShortTrials = 5;

using TryOne = std::function<int(std::int64_t n)>;  // runs one trial in the child process; returns an Outcome

// Starts a child process that runs the trial for one n.
inline pid_t start_trial(const TryOne& try_one, std::int64_t n) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(static_cast<unsigned>(patience() / std::chrono::seconds(1)));
  int outcome = kReached;
  try {
    outcome = try_one(n);
  } catch (const std::bad_alloc&) {
    outcome = kThrows;
  }
  failing_allocations::fail_after(0, false);
#ifdef __SANITIZE_ADDRESS__
  if (outcome == kReached && __lsan_do_recoverable_leak_check() != 0) outcome = kLeak;
#endif
  _exit(outcome);
}

// Waits for a trial. Returns its exit status, or 128 + the signal that killed it.
inline int end_of_trial(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs trials with n = 1, 1 + step, ... until one with n >= `count` does not reach its allocation. Returns the number
// of trials that reached it. On a busy machine a call can time out before its n-th allocation; this does not end the
// sweep, because n is still less than `count`. A fault is a failure of the test.
inline std::int64_t sweep_by(std::int64_t step, std::int64_t count, const TryOne& try_one) {
  std::deque<std::pair<std::int64_t, pid_t>> running;
  std::int64_t tried = 0;
  std::int64_t next = 1;
  for (bool ended = false; !ended || !running.empty();) {
    for (; !ended && running.size() < kTrialsAtOnce; next += step) {
      running.emplace_back(next, start_trial(try_one, next));
    }
    const auto [n, child] = running.front();
    running.pop_front();
    const int outcome = end_of_trial(child);
    if (outcome == kReached) ++tried;
    if (outcome == kNotReached && n >= count) ended = true;
    if (outcome == kReached || outcome == kNotReached) continue;
    ADD_FAILURE() << "allocation " << n << " " << describe_outcome(outcome) << " (status " << outcome << ")";
    if (!TUTTI_EVERY_ALLOCATION) ended = true;
  }
  return tried;
}

// Counts the allocations of a trial in which none fails. Returns 0, with a failure of the test, if this trial does
// not succeed.
inline std::int64_t count_allocations(const TryOne& try_one) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return 0;
  const auto count = [&](std::int64_t n) {
    const int outcome = try_one(n);
    const std::int64_t counted = failing_allocations::counted();
    return write(ends[1], &counted, sizeof(counted)) == sizeof(counted) ? outcome : kBadTrial;
  };
  const int outcome = end_of_trial(start_trial(count, INT64_MAX));
  std::int64_t counted = 0;
  if (outcome != kNotReached || read(ends[0], &counted, sizeof(counted)) != sizeof(counted)) {
    ADD_FAILURE() << "without a failing allocation the trial " << describe_outcome(outcome) << " (status " << outcome
                  << ")";
  }
  for (const int end : ends) close(end);
  return counted;
}

// Runs the whole sweep. `name` appears in the output.
inline void sweep(const std::string& name, const TryOne& try_one) {
  const std::int64_t count = count_allocations(try_one);
  if (::testing::Test::HasFailure()) return;
  const std::int64_t step = TUTTI_EVERY_ALLOCATION ? 1 : std::max<std::int64_t>(1, count / kShortTrials);
  const std::int64_t tried = sweep_by(step, count, try_one);
  std::printf("%s: %ld trials with a failed allocation; the first call made %ld\n", name.c_str(),
              static_cast<long>(tried), static_cast<long>(count));
}

}  // namespace tutti::test
