// Test of MemoryMonitor with a real-time thread that waits for the monitor's thread on the only CPU that both may
// use.
#include "transports/rdma/memory_monitor.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <thread>

#include "tests/support/patience.h"

namespace tutti {
namespace {

constexpr std::size_t kBytes = 1 << 16;

// Restricts all threads of this process to one CPU during the lifetime of the object.
class OneProcessor {
 public:
  OneProcessor() {
    CPU_ZERO(&before_);
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    set_all(one);
  }
  ~OneProcessor() { set_all(before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  static void set_all(const cpu_set_t& cpus) {
    const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"), closedir);
    while (const dirent* task = readdir(tasks.get())) {
      const pid_t thread = std::atoi(task->d_name);
      if (thread > 0) sched_setaffinity(thread, sizeof(cpus), &cpus);
    }
  }
  cpu_set_t before_;
};

bool become_real_time(int priority) {
  const sched_param param{.sched_priority = priority};
  return pthread_setschedparam(pthread_self(), SCHED_FIFO, &param) == 0;
}

std::chrono::nanoseconds own_cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// The first thread has real-time priority 1 and the second has 2. So the first thread continues only when the kernel
// blocks the second one in munmap(), which lasts until the monitor's thread has read the event. The monitor's thread
// is not a real-time thread, so it runs only while the first thread sleeps. If the first thread yielded instead of
// sleeping, it would use the CPU up to the kernel's limit for real-time threads, which by default is 0.95 s of each
// second.
TEST(MemoryMonitor, ARealTimeThreadSleepsWhileItWaits) {
  const auto monitor = MemoryMonitor::shared();
  if (monitor == nullptr) GTEST_SKIP() << "this system has no userfaultfd, or does not permit it";
  const OneProcessor one;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  ASSERT_TRUE(monitor->watch(begin, begin + kBytes));
  bool permitted = false;
  bool reported = false;
  std::chrono::nanoseconds used{}, waited{};
  std::thread([&] {
    permitted = become_real_time(1);
    if (!permitted) return;
    MemoryMonitor::Cursor cursor = monitor->now();
    std::atomic<bool> begun = false;
    std::thread other([&] {
      become_real_time(2);
      begun = true;
      munmap(memory, kBytes);
    });
    while (!begun) sched_yield();  // returns when the second thread, which starts with priority 1, has run
    const auto before = own_cpu_time();
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(monitor->gone_since(cursor, [&](std::uintptr_t from, std::uintptr_t) { reported |= from == begin; }));
    used = own_cpu_time() - before;
    waited = std::chrono::steady_clock::now() - start;
    other.join();
  }).join();
  if (!permitted) {
    munmap(memory, kBytes);
    GTEST_SKIP() << "this system lets this user start no real-time threads";
  }
  EXPECT_TRUE(reported);
  // On a busy machine the monitor's thread may be late, so the wait lasts longer and needs more CPU time.
  EXPECT_LT(used, std::max<std::chrono::nanoseconds>(test::scaled(std::chrono::milliseconds(300)), waited / 2));
}

}  // namespace
}  // namespace tutti
