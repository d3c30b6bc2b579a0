// Helpers for tests in which the ranks are processes.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "communicator/support.h"
#include "tests/support/patience.h"
#include "tests/support/ports.h"
#include "tests/support/shared_object.h"

namespace tutti::test {

inline CommunicatorOptions job(std::int32_t rank, std::int32_t size, std::uint16_t port) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.root = "127.0.0.1:" + std::to_string(port);
  options.job_id = "processes-test";
  options.setup_timeout = patience();
  options.timeout = patience();
  return options;
}

// Time limit of a child, in seconds, so that no child outlives a broken test. It is longer than one wait that times
// out, so that the error of that wait can still be seen.
inline const unsigned kLongestChildS = static_cast<unsigned>(2 * patience() / std::chrono::seconds(1));

// Runs body() in a child process. Its return value is the exit status.
inline pid_t start(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLongestChildS);
    _exit(body());
  }
  return child;
}

// Waits for the child. Returns its exit status, or 128 plus the signal that killed it.
inline int status_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Waits until children have raised a counter in shared memory to `wanted`.
inline void wait_for(const std::atomic<int>& counter, int wanted) {
  ASSERT_TRUE(eventually([&] { return counter >= wanted; })) << counter << " of " << wanted;
}

inline std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tutti::test
