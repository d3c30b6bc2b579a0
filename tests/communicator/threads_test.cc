// Tests that every thread of the library blocks the program's signals, so that their handlers never run in such a
// thread. The program interposes pthread_create() and checks the signal mask that each new thread inherits.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "base/thread.h"
#include "bootstrap/root_addresses.h"
#include "communicator/support.h"
#include "transports/rdma/memory_monitor.h"
#include "transports/sim/sim_environment.h"

namespace {

// Counts the threads that were started since the last reset.
struct Started {
  std::atomic<int> threads;
  std::atomic<int> with_signals;  // number of threads that can receive a signal of the program
  // number of threads that block a fault signal, so that the program's handler would not run for a fault
  std::atomic<int> deaf;
};
Started started;  // NOLINT: pthread_create() has no other place for it

bool is_fault(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGTRAP ||
         signal == SIGSYS;
}

bool all_blocked(const sigset_t& mask) {
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    const bool never = signal == SIGKILL || signal == SIGSTOP || (signal > SIGSYS && signal < SIGRTMIN);
    if (!is_fault(signal) && !never && sigismember(&mask, signal) == 0) return false;
  }
  return true;
}

bool a_fault_is_blocked(const sigset_t& mask) {
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    if (is_fault(signal) && sigismember(&mask, signal) == 1) return true;
  }
  return false;
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) noexcept {
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  ++started.threads;
  if (!all_blocked(mask)) ++started.with_signals;
  if (a_fault_is_blocked(mask)) ++started.deaf;
  return next(thread, attributes, run, argument);
}

namespace tutti::test {
namespace {

// Runs `body`, which makes the library start threads. Checks these threads, and that the mask of the caller is
// unchanged.
template <class Body>
void expect_threads_without_signals(const char* what, Body body) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  started.threads = 0;
  started.with_signals = 0;
  started.deaf = 0;
  body();
  EXPECT_GT(started.threads, 0) << what;
  EXPECT_EQ(started.with_signals, 0) << what << " starts threads that take the program's signals";
  EXPECT_EQ(started.deaf, 0) << what << " starts threads in which the program's handlers of faults do not run";
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << what << ", signal " << signal;
  }
}

TEST(Threads, TakeNoSignalsOfTheProgram) {
  expect_threads_without_signals("start_thread()", [] { start_thread([] {}).join(); });
  Communicators ranks;
  expect_threads_without_signals("create_all()", [&] { ranks = make_ranks(2); });
  expect_threads_without_signals("a call in the background", [&] {
    std::vector<std::int32_t> values(2, 1);
    std::vector<Work> works;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      auto work = ranks[rank]->start({.kind = CollectiveKind::kAllReduce,
                                      .input = &values[rank],
                                      .output = &values[rank],
                                      .count = 1,
                                      .type = DataType::kInt32});
      ASSERT_TRUE(work.ok()) << to_string(work.error());
      works.push_back(std::move(*work));
    }
    for (Work& work : works) {
      EXPECT_TRUE(work.wait().ok());
    }
    EXPECT_EQ(values[0], 2);
  });
  expect_threads_without_signals("create_async()", [] {
    CommunicatorOptions options;
    options.rank = 0;
    options.size = 1;
    EXPECT_TRUE(Communicator::create_async(options).wait().ok());
  });
  expect_threads_without_signals("a unique id", [] {
    EXPECT_TRUE(UniqueId::create({.interface = "lo", .timeout = std::chrono::milliseconds(1)}).ok());
  });
  expect_threads_without_signals("the look-up of a name", [] {
    RootAddresses root("localhost");
    root.look_up(patience());
  });
  expect_threads_without_signals("a simulation", [] {
    SimEnvironment world({.ranks = 2});
    world.run([](std::uint32_t) {});
  });
}

TEST(Threads, TheMonitorOfMemoryTakesNoSignalsOfTheProgram) {
  started.threads = 0;
  started.with_signals = 0;
  static_cast<void>(MemoryMonitor::shared());  // starts no thread if the kernel has no userfaultfd
  EXPECT_EQ(started.with_signals, 0);
}

// A program's handler for its own faults must also work in threads of the library, because user reductions run in
// them.
TEST(Threads, FaultsOfTheirOwnReachTheProgramsHandler) {
  static std::atomic<int> faults;
  struct sigaction handler {};
  struct sigaction before {};
  handler.sa_handler = [](int) { ++faults; };
  ASSERT_EQ(sigaction(SIGTRAP, &handler, &before), 0);
  start_thread([] { pthread_kill(pthread_self(), SIGTRAP); }).join();
  sigaction(SIGTRAP, &before, nullptr);
  EXPECT_EQ(faults, 1);
}

}  // namespace
}  // namespace tutti::test
