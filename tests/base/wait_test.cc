// Tests AdaptiveWaiter and the time slices of threads (base/system/time_slice.h).
#include "base/wait.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/system/time_slice.h"

namespace tutti {
namespace {

// A doorbell that records the calls of a waiter.
class FakeDoorbell final : public Doorbell {
 public:
  void arm() override { ++armed; }
  void disarm() override { ++disarmed; }
  void sleep(std::int64_t timeout_ns) override { sleeps_ns.push_back(timeout_ns); }
  void ring() override {}
  int armed = 0;
  int disarmed = 0;
  std::vector<std::int64_t> sleeps_ns;
};

// What FakeScheduler tells the waiter, and what the waiter has asked of it.
struct FakeTimes {
  std::int64_t yield_ns = 500;        // how long each yield takes
  std::int64_t slice_ns = 3'000'000;  // the usual time slice of this thread; 0: unknown
  std::int64_t now_ns = 1;
  int yields = 0;
  int readings = 0;  // of the clock
  bool shortened = false;
};

class FakeScheduler : public CoreScheduler {
 public:
  explicit FakeScheduler(FakeTimes& times) : times_(times) {}
  void yield() override {
    ++times_.yields;
    times_.now_ns += times_.yield_ns;
  }
  std::int64_t now_ns() override {
    ++times_.readings;
    return times_.now_ns;
  }
  std::int64_t usual_time_slice_ns() override { return times_.slice_ns; }
  void shorten_time_slice() override { times_.shortened = true; }
  void restore_time_slice() override { times_.shortened = false; }

 private:
  FakeTimes& times_;
};

class AdaptiveWaiterTest : public testing::Test {
 protected:
  std::unique_ptr<AdaptiveWaiter> make_waiter(WaitLimits limits) {
    return std::make_unique<AdaptiveWaiter>(limits, std::make_unique<FakeScheduler>(times_));
  }
  // Simulates one wait that ends after the given number of pauses.
  void wait_for(AdaptiveWaiter& waiter, std::uint32_t rounds) {
    Idle idle;
    for (std::uint32_t round = 0; round < rounds; ++round) waiter.pause(idle, bell_, 1'000'000);
    waiter.reset(idle, bell_);
  }
  // Simulates so many waits, and returns their number of yields.
  int yields_of(AdaptiveWaiter& waiter, int waits, std::uint32_t rounds) {
    const int before = times_.yields;
    for (int wait = 0; wait < waits; ++wait) wait_for(waiter, rounds);
    return times_.yields - before;
  }
  bool has_slept() const { return !bell_.sleeps_ns.empty(); }

  FakeTimes times_;
  FakeDoorbell bell_;
};

TEST_F(AdaptiveWaiterTest, SpinsThenYieldsThenArmsAndLetsTheCallerLookBeforeEverySleep) {
  const auto waiter = make_waiter({.spins = 3, .yields = 2});
  Idle idle;
  for (int round = 0; round < 5; ++round) waiter->pause(idle, bell_, 10'000'000);
  EXPECT_EQ(bell_.armed, 0);
  waiter->pause(idle, bell_, 10'000'000);
  EXPECT_EQ(bell_.armed, 1) << "armed but not asleep, so that the caller polls once more";
  EXPECT_TRUE(bell_.sleeps_ns.empty());
  for (int sleep = 0; sleep < 6; ++sleep) {
    waiter->pause(idle, bell_, 10'000'000);
    waiter->pause(idle, bell_, 10'000'000);
  }
  EXPECT_EQ(bell_.armed, 7);
  EXPECT_EQ(bell_.sleeps_ns,
            (std::vector<std::int64_t>{1'000'000, 2'000'000, 4'000'000, 8'000'000, 10'000'000, 10'000'000}));
  EXPECT_EQ(idle.sleeps, 6u);
  waiter->reset(idle, bell_);
  EXPECT_EQ(bell_.disarmed, 1);
  EXPECT_EQ(idle.rounds, 0u);
}

TEST_F(AdaptiveWaiterTest, SpinsLessWhereSpinningIsInVainAndMoreWhereItPays) {
  const auto waiter = make_waiter({.spins = 160, .yields = 2});
  const auto wait_of = [&](std::uint32_t rounds) { wait_for(*waiter, rounds); };
  wait_of(161);
  EXPECT_EQ(waiter->spins(), 80u);
  for (int wait = 0; wait < 10; ++wait) wait_of(200);
  EXPECT_EQ(waiter->spins(), 10u) << "the waiter must keep a minimum of spins";
  wait_of(5);
  EXPECT_EQ(waiter->spins(), 20u);
  for (int wait = 0; wait < 10; ++wait) wait_of(1);
  EXPECT_EQ(waiter->spins(), 160u) << "the spins must not exceed the limit";
}

// After long waits, the waiter goes to sleep early. Then the waits become short enough for the full limits.
TEST_F(AdaptiveWaiterTest, FindsOutThatWaitsHaveBecomeShorter) {
  const auto waiter = make_waiter({.spins = 160, .yields = 20});
  const auto wait_of = [&](std::uint32_t rounds) { wait_for(*waiter, rounds); };
  std::uint32_t probes = 0;
  for (int wait = 0; wait < 1000; ++wait) {
    probes += waiter->spins() == 160 && wait > 20 ? 1 : 0;
    wait_of(200);
  }
  EXPECT_GE(probes, 3u);
  EXPECT_LE(probes, 6u) << "the waiter must probe less and less often";
  EXPECT_EQ(waiter->spins(), 10u);
  for (int wait = 0; wait < 1100; ++wait) wait_of(100);  // longer than the spins and yields that remained
  EXPECT_EQ(waiter->spins(), 160u);
  const auto sleeps = bell_.sleeps_ns.size();
  for (int wait = 0; wait < 100; ++wait) wait_of(100);
  EXPECT_EQ(bell_.sleeps_ns.size(), sleeps);
}

// A yield gives the core to a thread that computes, which keeps it for a time slice. The wait then sleeps, and the next
// ones do not yield, until a probe finds that yields are short again.
TEST_F(AdaptiveWaiterTest, SleepsInsteadOfYieldingWhileOtherThreadsKeepTheCore) {
  const auto waiter = make_waiter({.spins = 160, .yields = 300});
  EXPECT_GT(yields_of(*waiter, 63, 250), 63 * 90);
  EXPECT_FALSE(has_slept());
  times_.yield_ns = times_.slice_ns * 2 / 3;
  EXPECT_EQ(yields_of(*waiter, 1, 250), 2);
  EXPECT_TRUE(has_slept());
  EXPECT_TRUE(times_.shortened);
  EXPECT_EQ(yields_of(*waiter, 16, 250), 0);
  EXPECT_FALSE(times_.shortened) << "the next wait is a probe";
  EXPECT_EQ(yields_of(*waiter, 1, 250), 1) << "the probe fails";
  EXPECT_TRUE(times_.shortened);
  EXPECT_EQ(yields_of(*waiter, 32, 250), 0) << "the next probe must come later";
  times_.yield_ns = 500;
  EXPECT_EQ(yields_of(*waiter, 1, 500), 300) << "a probe, which goes on although this wait sleeps";
  EXPECT_FALSE(times_.shortened) << "the probe is about the usual slice";
  EXPECT_EQ(yields_of(*waiter, 15, 250), 15 * 90);
  const auto sleeps = bell_.sleeps_ns.size();
  EXPECT_GT(yields_of(*waiter, 200, 250), 200 * 90);
  EXPECT_EQ(bell_.sleeps_ns.size(), sleeps);
  EXPECT_FALSE(times_.shortened);
}

TEST_F(AdaptiveWaiterTest, YieldsOfLessThanHalfASliceAreNotLong) {
  const auto waiter = make_waiter({.spins = 2, .yields = 100});
  times_.yield_ns = times_.slice_ns * 2 / 5;
  EXPECT_EQ(yields_of(*waiter, 200, 10), 200 * 8);
  EXPECT_FALSE(has_slept());
}

// A thread of another session may take the core at any time. Two such events are far apart.
TEST_F(AdaptiveWaiterTest, LongYieldsThatAreFarApartProveNothing) {
  const auto waiter = make_waiter({.spins = 2, .yields = 100});
  for (const int between : {16, 15}) {
    times_.yield_ns = 2'000'000;
    EXPECT_EQ(yields_of(*waiter, 1, 3), 1);
    times_.yield_ns = 500;
    EXPECT_EQ(yields_of(*waiter, between, 3), between);
    EXPECT_EQ(waiter->yields(), 100u);
    if (between == 16) yields_of(*waiter, 63 - 17, 3);  // the next wait is measured
  }
  times_.yield_ns = 2'000'000;
  EXPECT_EQ(yields_of(*waiter, 1, 3), 1);
  EXPECT_EQ(waiter->yields(), 0u) << "16 waits after the one before";
  EXPECT_FALSE(has_slept()) << "the wait ended with its yield";
}

// The clock is read for few of the waits, and for all yields of long ones.
TEST_F(AdaptiveWaiterTest, MeasuresFewShortWaitsAndEveryLongOne) {
  const auto waiter = make_waiter({.spins = 2, .yields = 100});
  EXPECT_EQ(yields_of(*waiter, 630, 4), 630 * 2);
  EXPECT_GE(times_.readings, 10 * 3);
  EXPECT_LE(times_.readings, 11 * 3);
  wait_for(*waiter, 4);  // it is measured
  times_.yield_ns = 2'000'000;
  times_.slice_ns = 0;  // unknown
  EXPECT_EQ(yields_of(*waiter, 1, 60), 16 + 2);
  EXPECT_TRUE(has_slept());
}

TEST_F(AdaptiveWaiterTest, AProbeGoesOnUntilWaitsHaveProvedEnough) {
  const auto waiter = make_waiter({.spins = 160, .yields = 100});
  times_.yield_ns = 2'000'000;
  yields_of(*waiter, 17, 250);
  EXPECT_EQ(waiter->yields(), 100u) << "the next wait must be a probe";
  yields_of(*waiter, 1000, 150);
  EXPECT_EQ(yields_of(*waiter, 1, 250), 1) << "the first long yield must end the probe";
  EXPECT_EQ(waiter->yields(), 0u);
  yields_of(*waiter, 32, 250);
  EXPECT_EQ(waiter->yields(), 100u);
  yields_of(*waiter, 1024, 150);
  EXPECT_EQ(yields_of(*waiter, 1, 250), 2) << "the waits that spun were enough, so two long yields are needed again";
}

TEST_F(AdaptiveWaiterTest, LeavesNoShortTimeSliceBehind) {
  auto waiter = make_waiter({.spins = 2, .yields = 100});
  times_.yield_ns = 2'000'000;
  wait_for(*waiter, 10);
  EXPECT_TRUE(times_.shortened);
  waiter.reset();
  EXPECT_FALSE(times_.shortened);
}

// What the kernel says about the calling thread; 0 if it has no slices of single threads.
std::int64_t slice_of_this_thread_ns() {
  std::array<char, 48> attributes{};  // struct sched_attr
  if (syscall(SYS_sched_getattr, 0, attributes.data(), attributes.size(), 0) != 0) return 0;
  std::int64_t slice_ns = 0;
  std::memcpy(&slice_ns, &attributes[24], sizeof(slice_ns));  // its member sched_runtime
  return slice_ns;
}

// Runs `check` in a child process of one thread, and returns whether it returned true.
template <class Check>
bool holds_in_child(const Check& check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

// Slices exist from Linux 6.12 on; on older systems, shorten_time_slice() has no effect.
TEST(TimeSlice, IsShortenedAndRestored) {
  std::thread([] {
    const std::int64_t usual_ns = usual_time_slice_ns();
    shorten_time_slice();
    EXPECT_EQ(usual_time_slice_ns(), usual_ns) << "the usual one remains known";
    if (usual_ns > 0) {
      EXPECT_EQ(slice_of_this_thread_ns(), kShortestTimeSliceNs);
    }
    std::thread([usual_ns] { EXPECT_EQ(usual_time_slice_ns(), usual_ns) << "a thread does not inherit it"; }).join();
    EXPECT_TRUE(holds_in_child([usual_ns] {
      const bool usual = usual_time_slice_ns() == usual_ns && (usual_ns == 0 || slice_of_this_thread_ns() == usual_ns);
      shorten_time_slice();
      return usual && (usual_ns == 0 || slice_of_this_thread_ns() == kShortestTimeSliceNs);
    })) << "a process does not inherit it, and can ask for it";
    restore_time_slice();
    EXPECT_EQ(usual_time_slice_ns(), usual_ns);
    if (usual_ns > 0) {
      EXPECT_EQ(slice_of_this_thread_ns(), usual_ns);
    }
  }).join();
}

TEST(TimeSlice, ThreadsOfThePolicySchedBatchHaveOne) {
  EXPECT_TRUE(holds_in_child([] {
    const sched_param parameters{};
    if (sched_setscheduler(0, SCHED_BATCH, &parameters) != 0) return false;
    const std::int64_t usual_ns = usual_time_slice_ns();
    shorten_time_slice();
    if (usual_ns > 0 && slice_of_this_thread_ns() != kShortestTimeSliceNs) return false;
    restore_time_slice();
    return usual_time_slice_ns() == usual_ns && sched_getscheduler(0) == SCHED_BATCH;
  }));
}

// The flag that keeps children from inheriting the slice would also reset their nice value to 0.
TEST(TimeSlice, OfAThreadWithANegativeNiceValueStaysAsItIs) {
  EXPECT_TRUE(holds_in_child([] {
    if (setpriority(PRIO_PROCESS, 0, -5) != 0) return errno == EACCES;  // without CAP_SYS_NICE there are none
    const std::int64_t usual_ns = slice_of_this_thread_ns();
    shorten_time_slice();
    return slice_of_this_thread_ns() == usual_ns;
  }));
}

// Only a process with CAP_SYS_NICE may remove the flag.
TEST(TimeSlice, IsRestoredWithoutPrivileges) {
  EXPECT_TRUE(holds_in_child([] {
    if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) return false;
    const std::int64_t usual_ns = usual_time_slice_ns();
    shorten_time_slice();
    if (usual_ns > 0 && slice_of_this_thread_ns() != kShortestTimeSliceNs) return false;
    restore_time_slice();
    return usual_ns == 0 || slice_of_this_thread_ns() == usual_ns;
  }));
}

// Lets every sched_setattr of this process fail with EPERM, as a container's filter of system calls may do.
bool forbid_sched_setattr() {
  std::array<sock_filter, 4> filter{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_sched_setattr},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// The refusal must not be taken for a failure of the program.
TEST(TimeSlice, ARefusedChangeHasNoEffect) {
  EXPECT_TRUE(holds_in_child([] {
    if (!forbid_sched_setattr()) return false;
    const std::int64_t usual_ns = usual_time_slice_ns();
    shorten_time_slice();
    if (usual_time_slice_ns() != usual_ns) return false;
    restore_time_slice();
    return usual_time_slice_ns() == usual_ns;
  }));
}

TEST(WaitLimits, MoreRanksThanCoresSpinLess) {
  EXPECT_LT(wait_limits(3, 2).spins, wait_limits(2, 2).spins);
  EXPECT_GT(wait_limits(3, 2).yields, 0u);
}

}  // namespace
}  // namespace tutti
