// Tests of groups of threads, in a program whose allocations can fail.
#include "base/thread_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <new>

#include "support/failing_allocations.h"

namespace tutti {
namespace {

constexpr int kThreads = 3;

// Runs bodies that wait for each other at `meet` and then count themselves in `ran`. Returns false if an allocation
// failed.
bool run_together(std::barrier<>& meet, std::atomic<int>& ran) {
  try {
    ThreadGroup threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.add([&] {
        meet.arrive_and_wait();
        ++ran;
      });
    }
    threads.open();
    threads.join();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

TEST(ThreadGroup, RunsItsBodiesAtTheSameTime) {
  std::barrier<> meet(kThreads);
  std::atomic<int> ran = 0;
  EXPECT_TRUE(run_together(meet, ran));
  EXPECT_EQ(ran, kThreads);
}

// Every allocation fails once. The process must survive that, and none of the bodies may run.
TEST(ThreadGroup, RunsNoBodyIfAThreadCannotBeStarted) {
  std::int64_t failures = 0;
  for (bool complete = false; !complete; ++failures) {
    std::barrier<> meet(kThreads);
    std::atomic<int> ran = 0;
    test::failing_allocations::set_counted(0);
    test::failing_allocations::fail_after(failures + 1, false);
    complete = run_together(meet, ran);
    test::failing_allocations::fail_after(0, false);
    EXPECT_EQ(ran, complete ? kThreads : 0) << "allocation " << failures + 1;
  }
  EXPECT_GT(failures, kThreads) << "each thread needs an allocation";
}

}  // namespace
}  // namespace tutti
