// Sweeps over failing allocations. A trial is something that the library does with the n-th `operator new` throwing
// std::bad_alloc, in a process of its own. It checks that no rank hangs or crashes, that a result reported as good is
// right, that an error has a message, that the ranks can go on, and that everything can be destroyed. A sweep goes
// through n until a trial ends without having reached its n-th allocation.
//
// The long programs (TUTTI_EVERY_ALLOCATION=1) try every n; the short ones as many as fit into a few seconds, spread
// evenly.
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

namespace tutti::test {

// The exit status of a process that tries one n. kReached: all is well. kNotReached: all is well, and there were fewer
// than n allocations. The others are faults.
enum Outcome : int {
  kReached = 0,
  kNotReached = 10,
  kWrongData = 11,   // a call was reported as good, but its result is not right
  kNoMessage = 12,   // an error without a message
  kLeak = 13,        // memory that nothing points to (found in programs with the address sanitizer)
  kThrows = 14,      // an exception leaves a public function
  kWrongScope = 16,  // the error says that the call alone failed, but the communicator does not serve any more
  kLostGpu = 17,     // the GPU's context is lost, or its stream does not end well
  kBadTrial = 15,    // the trial itself went wrong before any allocation failed
};

inline const char* words_of(int status) {
  switch (status) {
    case kReached: return "is well";
    case kNotReached: return "is not reached";
    case kWrongData: return "gives a wrong result that is reported as good";
    case kNoMessage: return "gives an error without a message";
    case kLeak: return "leaks memory";
    case kWrongScope: return "breaks the communicator with an error of the call alone";
    case kLostGpu: return "loses the GPU";
    case kThrows: return "leaves a public function as an exception";
    case kBadTrial: return "cannot be tried";
    case 128 + SIGALRM: return "hangs";
    default: return "crashes";
  }
}

// How many trials run at the same time: most of them wait for a deadline.
inline constexpr std::size_t kTrialsAtOnce = TUTTI_EVERY_ALLOCATION ? 16 : 6;
// How many trials a short sweep has, about.
inline constexpr std::int64_t kShortTrials = 5;

using TryOne = std::function<int(std::int64_t n)>;  // an Outcome

// A process that tries one n.
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

// The exit status, or 128 and the signal.
inline int end_of_trial(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Trials of n = 1, 1 + step, ... until one beyond `count` is not reached; how many were reached. On a busy machine a
// call may end by its deadline before its n-th allocation: that is no end of the sweep. A fault is a failure of the
// test.
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
    ADD_FAILURE() << "allocation " << n << " " << words_of(outcome) << " (status " << outcome << ")";
    if (!TUTTI_EVERY_ALLOCATION) ended = true;
  }
  return tried;
}

// How many allocations there are if none fails; 0 and a failure of the test if that does not go well.
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
    ADD_FAILURE() << "no allocation fails, and the trial " << words_of(outcome) << " (status " << outcome << ")";
  }
  for (const int end : ends) close(end);
  return counted;
}

// The whole sweep over `name`.
inline void sweep(const std::string& name, const TryOne& try_one) {
  const std::int64_t count = count_allocations(try_one);
  if (::testing::Test::HasFailure()) return;
  const std::int64_t step = TUTTI_EVERY_ALLOCATION ? 1 : std::max<std::int64_t>(1, count / kShortTrials);
  const std::int64_t tried = sweep_by(step, count, try_one);
  std::printf("%s: %ld trials with a failed allocation; the first call made %ld\n", name.c_str(),
              static_cast<long>(tried), static_cast<long>(count));
}

}  // namespace tutti::test
