// Test of the warning about a call that waits long for another rank, by processes with GPUs of their own. It takes more
// than a minute, so only the full run has it.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/device/calls/jobs_support.h"
#include "tests/support/patience.h"
#include "tests/support/shared_object.h"

namespace tutti::testing {
namespace {

// The log of all ranks, and whether rank 1 has looked at the call after it was stopped; in memory of all processes.
FILE* log_file = nullptr;
std::atomic<bool>& looked_again = test::shared_object<std::atomic<bool>>();

std::string log_text() {
  std::string text(10'000, '\0');
  const ssize_t bytes = pread(fileno(log_file), text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, bytes)));
  return text;
}

// The watchdog asks the events of a launch every 20 ms. After a few times it has seen that the kernel runs.
void wait_for_the_watchdog() {
  const unsigned asked = small_devices().calls("cuEventQuery");
  must(test::eventually([&] { return small_devices().calls("cuEventQuery") >= asked + 20; }), "no watchdog");
}

// Stops this process, and continues it after `time`.
void stop_for(std::chrono::seconds time) {
  const pid_t stopped = getpid();
  const pid_t helper = fork();
  must(helper >= 0, "fork");
  if (helper == 0) {
    std::this_thread::sleep_for(time);
    kill(stopped, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
  waitpid(helper, nullptr, 0);
}

// Rank 2 makes the call when rank 0 has written its warning, and rank 1 has looked at the call again. Rank 1 is stopped
// meanwhile, so it must not write a warning.
void check_late(Communicator& rank, const Gpu& gpu) {
  if (rank.rank() == 2) {
    const auto has_warned = [] { return looked_again && log_text().find("this is rank 0") != std::string::npos; };
    bool done = false;
    for (int i = 0; i < 5 && !done; ++i) done = test::eventually(has_warned);  // up to 150 s
    must(done, "there is no warning, or rank 1 stays");
  }
  const cuda::DeviceMemory memory = gpu.allocate(4'096);
  auto work = rank.start({.input = pointer(memory), .output = pointer(memory), .count = 1'024}, gpu.options());
  must(work.ok(), "start");
  if (rank.rank() == 1) {
    wait_for_the_watchdog();
    stop_for(std::chrono::seconds(62));
    wait_for_the_watchdog();
    looked_again = true;
  }
  must(work->wait());
  gpu.synchronize();
}

TEST(LateRank, IsNamedInAWarning) {
  // By default the fake driver ends a kernel, or a wait for one, that takes 60 s.
  setenv("FAKE_CUDA_STALL_MS", "600000", 1);
  setenv("FAKE_CUDA_STUCK_MS", "600000", 1);
  log_file = std::tmpfile();
  ASSERT_NE(log_file, nullptr);
  EXPECT_TRUE(Job({0, 1, 2}).run(check_late, std::chrono::seconds(600), [] { dup2(fileno(log_file), STDERR_FILENO); }));
  const std::string text = log_text();
  EXPECT_THAT(text,
              ::testing::HasSubstr("waited 60 s in the stream for rank 2: not entered by rank 2; this is rank 0"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("this is rank 1"))) << "the time while it was stopped counts";
}

}  // namespace
}  // namespace tutti::testing
