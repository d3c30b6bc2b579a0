// Tests of the emulator: scheduling of launches and blocks, detection of stuck runs, the weak memory model, and the
// replay of a run from its seed.
#include "tests/device/emulator/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/port.h"
#include "tests/device/emulator/port_emu.h"

namespace tutti::emu {
namespace {

namespace port = device::port;

// ThreadSanitizer regards fibers as threads, so it reports the races that some of these tests contain on purpose.
#if defined(__SANITIZE_THREAD__)
constexpr bool kReportsRaces = true;
#else
constexpr bool kReportsRaces = false;
#endif
using ::testing::HasSubstr;

TEST(Emulator, RunsEveryThreadOfEveryBlockOnce) {
  for (const Policy policy : {Policy::kRoundRobin, Policy::kRandom, Policy::kPriority}) {
    Emulator emulator({.policy = policy});
    std::vector<int> runs(3 * 64);
    const std::uint64_t launch = emulator.launch(0, 3, 64, [&runs] {
      const port::BlockMemory<int> memory;
      int& sum = memory.get();
      if (port::thread() == 0) sum = 0;
      port::block_barrier();
      std::atomic_ref(sum).fetch_add(1);
      port::block_barrier();
      runs[port::block() * 64 + port::thread()] += sum;
    });
    EXPECT_FALSE(emulator.done(launch));
    EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle);
    EXPECT_TRUE(emulator.done(launch));
    EXPECT_EQ(runs, std::vector<int>(3 * 64, 64));
  }
}

// The fake device needs this: kernels wait for a kernel that is launched later.
TEST(Emulator, TakesLaunchesWhileOthersRun) {
  Emulator emulator({.policy = Policy::kRandom});
  std::uint64_t flag = 0;
  const auto waits = [&flag] {
    while (port::load_acquire(&flag) == 0) port::pause();
  };
  const std::uint64_t first = emulator.launch(0, 1, 32, waits);
  EXPECT_EQ(emulator.run_until([&] { return emulator.turns() > 500; }), Emulator::RunResult::kReached);
  EXPECT_FALSE(emulator.done(first));
  const std::uint64_t second = emulator.launch(1, 1, 32, [&flag] {
    if (port::thread() == 7) port::store_release(&flag, 1);
  });
  EXPECT_EQ(emulator.run_until([&] { return emulator.done(second); }), Emulator::RunResult::kReached);
  EXPECT_EQ(emulator.run_until([&] { return emulator.done(first); }), Emulator::RunResult::kReached);
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle);
}

// Only some blocks of the launch can be resident at once; the others start when these have finished.
TEST(Emulator, RunsBlocksInTheRoomThatOthersLeave) {
  Emulator emulator({.policy = Policy::kRandom, .yield_log2 = 1, .resident_blocks = 2});
  std::uint64_t at_once = 0;
  std::uint64_t most = 0;
  std::uint64_t runs = 0;
  const std::uint64_t launch = emulator.launch(0, 7, 32, [&] {
    if (port::thread() == 0) most = std::max(most, ++at_once);
    for (int i = 0; i < 10; ++i) port::load_relaxed(&runs);
    port::block_barrier();
    if (port::thread() != 0) return;
    ++runs;
    --at_once;
  });
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle);
  EXPECT_TRUE(emulator.done(launch));
  EXPECT_EQ(runs, 7u);
  EXPECT_EQ(most, 2u);

  Emulator stuck({.resident_blocks = 1});
  std::uint64_t flag = 0;
  stuck.launch(0, 2, 32, [&flag] {
    if (port::block() == 1) port::store_release(&flag, 1);
    while (port::load_acquire(&flag) == 0) port::pause();
  });
  EXPECT_EQ(stuck.run(), Emulator::RunResult::kStuck) << "block 0 waits for block 1, which can never become resident";
}

// Two emulators in two threads take turns: each stores only after the other has stored. Both must finish.
TEST(Emulator, OnTheRealClockWaitsForAnotherThreadsWorld) {
  std::uint64_t words[2] = {};
  const auto play = [&words](unsigned player) {
    Emulator emulator({.seed = player, .policy = Policy::kRandom, .clock = Clock::kReal});
    emulator.launch(0, 1, 64, [&words, player] {
      for (std::uint64_t turn = 1; turn <= 100; ++turn) {
        if (port::thread() == player) {
          if (player == 0) port::store_release(&words[0], turn);
          while (port::load_acquire(&words[1 - player]) < turn) port::pause();
          if (player == 1) port::store_release(&words[1], turn);
        }
        port::block_barrier();
      }
    });
    EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
  };
  std::thread other([&play] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(words[0], 100u);
  EXPECT_EQ(words[1], 100u);
}

TEST(Emulator, OnTheRealClockIsStuckAfterSoManyMilliseconds) {
  Emulator emulator({.clock = Clock::kReal, .stall_ms = 50});
  std::uint64_t never = 0;
  emulator.launch(3, 1, 32, [&never] {
    while (port::load_acquire(&never) == 0) port::pause();
  });
  const std::uint64_t begin_ns = emulator.now_ns();
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kStuck);
  EXPECT_GE(emulator.now_ns() - begin_ns, 50'000'000u);
  EXPECT_THAT(emulator.report(), HasSubstr("stall"));
}

TEST(Emulator, NamesThePlacesOfThreadsThatWaitForNobody) {
  if (kReportsRaces) GTEST_SKIP() << "ThreadSanitizer reports races with threads that never finish";
  Emulator emulator({});
  std::uint64_t never = 0;
  emulator.launch(3, 1, 32, [&never] {
    while (port::load_acquire(&never) == 0) port::pause();
  });
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kStuck);
  EXPECT_THAT(emulator.report(), HasSubstr("stall"));
  EXPECT_THAT(emulator.report(), HasSubstr("gpu 3 block 0: running"));
  EXPECT_THAT(emulator.report(), HasSubstr("emulator_test.cc:"));
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kStuck) << "it stays so";
}

TEST(Emulator, NamesTheBarrierAtWhichAThreadIsMissing) {
  if (kReportsRaces) GTEST_SKIP() << "ThreadSanitizer reports races with threads that never finish";
  Emulator emulator({});
  emulator.launch(0, 2, 64, [] {
    if (port::thread() != 5) port::block_barrier();
  });
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kStuck);
  EXPECT_THAT(emulator.report(), HasSubstr("deadlock"));
  EXPECT_THAT(emulator.report(), HasSubstr("block 1: at barrier"));
  EXPECT_THAT(emulator.report(), HasSubstr("x63"));
}

// Returns the order in which the threads made their stores in one run.
std::vector<unsigned> order_of(std::uint64_t seed, Policy policy) {
  Emulator emulator({.seed = seed, .policy = policy, .yield_log2 = 1});
  std::vector<unsigned> order;
  std::uint64_t word = 0;
  emulator.launch(0, 2, 32, [&] {
    for (int i = 0; i < 3; ++i) {
      port::store_relaxed(&word, i);
      const TsanIgnoreScope ignore_scope;  // only the turns order these accesses, which ThreadSanitizer does not see
      order.push_back(port::block() * 32 + port::thread());
    }
  });
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle);
  return order;
}

TEST(Emulator, ASeedReplaysARunAndAnotherSeedGivesAnother) {
  for (const Policy policy : {Policy::kRandom, Policy::kPriority}) {
    EXPECT_EQ(order_of(1, policy), order_of(1, policy));
    EXPECT_NE(order_of(1, policy), order_of(2, policy));
  }
}

// Message passing between two GPUs: one stores data and then a flag, the other waits for the flag and then loads the
// data. Returns how often, in 50 runs, the reader saw the flag but old data.
enum class Order : std::uint8_t { kReleaseAcquire, kRelaxedStore, kRelaxedLoad };
int stale_reads(Order order, bool weak) {
  int stale = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Emulator emulator({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 1, .weak = weak});
    alignas(16) std::array<std::uint64_t, 2> data{};
    alignas(16) std::array<std::uint64_t, 2> seen{};
    std::uint64_t flag = 0;
    emulator.launch(0, 1, 32, [&] {
      if (port::thread() != 0) return;
      port::store(data.data(), std::uint64_t{42});
      if (order == Order::kRelaxedStore)
        port::store_relaxed(&flag, 1);
      else
        port::store_release(&flag, 1);
    });
    emulator.launch(1, 1, 32, [&] {
      if (port::thread() != 0) return;
      seen[0] = port::load(data.data());  // puts the old value into the cache
      const auto look = [&] {
        return order == Order::kRelaxedLoad ? port::load_relaxed(&flag) : port::load_acquire(&flag);
      };
      while (look() == 0) port::pause();
      seen[1] = port::load(data.data());
    });
    EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
    stale += seen[1] != 42 ? 1 : 0;
  }
  return stale;
}

TEST(WeakMemory, ShowsAMissingReleaseAndAMissingAcquire) {
  EXPECT_EQ(stale_reads(Order::kReleaseAcquire, true), 0);
  EXPECT_GT(stale_reads(Order::kRelaxedStore, true), 0);
  EXPECT_GT(stale_reads(Order::kRelaxedLoad, true), 0);
  if (kReportsRaces) return;  // ThreadSanitizer would correctly report the race in the next check
  EXPECT_EQ(stale_reads(Order::kRelaxedStore, false), 0) << "without the weak memory model, accesses keep their order";
}

// A reader loads from a slot and then returns it with a credit; the writer waits for the credit and stores into the
// slot again. Returns the number of stores that happened while a load from the slot could still be in progress, in 20
// runs.
std::uint64_t overtaken_loads(Order order) {
  std::uint64_t overtaking = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Emulator emulator({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 1, .weak = true});
    alignas(16) std::array<std::uint64_t, 2> slot{};
    std::uint64_t credit = 0;
    emulator.launch(0, 1, 32, [&] {
      static_cast<void>(port::load(&slot[port::thread() % 2]));
      port::block_barrier();
      if (port::thread() != 0) return;
      if (order == Order::kRelaxedStore)
        port::store_relaxed(&credit, 1);
      else
        port::store_release(&credit, 1);
      for (int turn = 0; turn < 100; ++turn) port::pause();
    });
    emulator.launch(1, 1, 32, [&] {
      if (port::thread() != 0) return;
      while (port::load_acquire(&credit) == 0) port::pause();
      port::store(slot.data(), std::uint64_t{42});
    });
    EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
    overtaking += emulator.overtaking();
  }
  return overtaking;
}

// A thread loads a value and sends it in a line, as LL and LL128 do. The receiver of the line may then overwrite the
// value without a release. Returns the number of stores that happened while the load could be in progress.
std::uint64_t loads_overtaken_by_the_reader_of_a_line() {
  Emulator emulator({.seed = 1, .policy = Policy::kRandom, .yield_log2 = 1, .weak = true});
  std::uint64_t value = 7;
  alignas(16) device::Word16 line{};
  emulator.launch(0, 1, 32, [&] {
    if (port::thread() != 0) return;
    const std::uint64_t loaded = port::load(&value);
    port::store16_volatile(&line, {static_cast<std::uint32_t>(loaded), 1, 0, 1});
    for (int turn = 0; turn < 100; ++turn) port::pause();
  });
  emulator.launch(1, 1, 32, [&] {
    if (port::thread() != 0) return;
    while (port::load16_volatile(&line).y == 0) port::pause();
    port::store(&value, std::uint64_t{42});
  });
  EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
  return emulator.overtaking();
}

TEST(WeakMemory, CountsStoresWhereALoadMayBeUnderWay) {
  EXPECT_EQ(loads_overtaken_by_the_reader_of_a_line(), 0u);
  EXPECT_EQ(overtaken_loads(Order::kReleaseAcquire), 0u);
  if (kReportsRaces) return;  // ThreadSanitizer would correctly report the race in the next check
  EXPECT_GT(overtaken_loads(Order::kRelaxedStore), 0u);
}

// A release also covers the stores that other threads of the block made before a barrier.
TEST(WeakMemory, AReleaseBehindABarrierSpeaksForTheBlock) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Emulator emulator({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 2, .weak = true});
    alignas(16) std::array<std::uint64_t, 32> data{};
    std::uint64_t flag = 0;
    bool all_seen = true;
    emulator.launch(0, 1, 32, [&] {
      port::store(&data[port::thread()], std::uint64_t{1});
      port::block_barrier();
      if (port::thread() == 9) port::store_release(&flag, 1);
    });
    emulator.launch(1, 1, 32, [&] {
      if (port::thread() == 0) {
        while (port::load_acquire(&flag) == 0) port::pause();
      }
      port::block_barrier();
      if (port::load(&data[port::thread()]) != 1) all_seen = false;
    });
    ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
    EXPECT_TRUE(all_seen) << "seed " << seed;
  }
}

TEST(Port, AWarpVotesAndALineMovesAsOne) {
  Emulator emulator({.seed = 3, .policy = Policy::kRandom, .yield_log2 = 1});
  alignas(128) std::array<device::Word16, 8> line{};
  std::set<std::uint32_t> mixtures;
  std::uint64_t written = 0;
  emulator.launch(0, 1, 32, [&] {
    for (std::uint32_t round = 1; round <= 50; ++round) {
      if (port::thread() < 8) port::store_line(&line[port::thread()], {round, round, round, round});
    }
    if (port::thread() == 0) port::store_release(&written, 1);
  });
  emulator.launch(1, 1, 32, [&] {
    for (;;) {
      device::Word16 word{};
      if (port::thread() < 8) word = port::load_line(&line[port::thread()]);
      const port::BlockMemory<std::uint32_t> memory;
      std::uint32_t& seen = memory.get();
      if (port::thread() == 0) seen = word.x;
      port::block_barrier();
      if (port::thread() < 8 && word.w != seen) mixtures.insert(word.w);
      if (!port::warp_any(port::load_acquire(&written) == 0)) break;
    }
  });
  ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
  EXPECT_TRUE(mixtures.empty()) << "a load of a line returned parts of two stores";
}

// All other threads of the block wait at a barrier.
TEST(Emulator, TimePassesForAThreadThatWaitsAlone) {
  for (const Policy policy : {Policy::kRoundRobin, Policy::kRandom, Policy::kPriority}) {
    Emulator emulator({.policy = policy});
    emulator.launch(0, 1, 32, [] {
      const std::uint64_t begin_ns = port::now_ns();
      while (port::thread() == 0 && port::now_ns() - begin_ns < 10'000) port::pause();
      port::block_barrier();
    });
    EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
  }
}

}  // namespace
}  // namespace tutti::emu
