// The emulator itself: what it runs, what it calls stuck, what its weak memory shows, and that a seed replays a run.
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
#include "tests/device/emulator/world.h"

namespace tutti::emu {
namespace {

namespace port = device::port;

// ThreadSanitizer takes fibers for threads, and so sees races where they are meant.
#if defined(__SANITIZE_THREAD__)
constexpr bool kReportsRaces = true;
#else
constexpr bool kReportsRaces = false;
#endif
using ::testing::HasSubstr;

TEST(World, RunsEveryThreadOfEveryBlockOnce) {
  for (const Policy policy : {Policy::kRoundRobin, Policy::kRandom, Policy::kPriority}) {
    World world({.policy = policy});
    std::vector<int> runs(3 * 64);
    const std::uint64_t launch = world.launch(0, 3, 64, [&runs] {
      TUTTI_SHARED(int, sum);
      if (port::thread() == 0) sum = 0;
      port::block_barrier();
      std::atomic_ref(sum).fetch_add(1);
      port::block_barrier();
      runs[port::block() * 64 + port::thread()] += sum;
    });
    EXPECT_FALSE(world.done(launch));
    EXPECT_EQ(world.run(), World::End::kIdle);
    EXPECT_TRUE(world.done(launch));
    EXPECT_EQ(runs, std::vector<int>(3 * 64, 64));
  }
}

// What a stand-in for the driver needs: kernels that wait for one that is launched later.
TEST(World, TakesLaunchesWhileOthersRun) {
  World world({.policy = Policy::kRandom});
  std::uint64_t flag = 0;
  const auto waits = [&flag] {
    while (port::load_acquire(&flag) == 0) port::pause();
  };
  const std::uint64_t first = world.launch(0, 1, 32, waits);
  EXPECT_EQ(world.run_until([&] { return world.switches() > 500; }), World::End::kReached);
  EXPECT_FALSE(world.done(first));
  const std::uint64_t second = world.launch(1, 1, 32, [&flag] {
    if (port::thread() == 7) port::store_release(&flag, 1);
  });
  EXPECT_EQ(world.run_until([&] { return world.done(second); }), World::End::kReached);
  EXPECT_EQ(world.run_until([&] { return world.done(first); }), World::End::kReached);
  EXPECT_EQ(world.run(), World::End::kIdle);
}

// A launch that finds room for some of its blocks only.
TEST(World, RunsBlocksInTheRoomThatOthersLeave) {
  World world({.policy = Policy::kRandom, .yield_log2 = 1, .resident_blocks = 2});
  std::uint64_t at_once = 0;
  std::uint64_t most = 0;
  std::uint64_t runs = 0;
  const std::uint64_t launch = world.launch(0, 7, 32, [&] {
    if (port::thread() == 0) most = std::max(most, ++at_once);
    for (int i = 0; i < 10; ++i) port::load_relaxed(&runs);
    port::block_barrier();
    if (port::thread() != 0) return;
    ++runs;
    --at_once;
  });
  EXPECT_EQ(world.run(), World::End::kIdle);
  EXPECT_TRUE(world.done(launch));
  EXPECT_EQ(runs, 7u);
  EXPECT_EQ(most, 2u);

  World stuck({.resident_blocks = 1});
  std::uint64_t flag = 0;
  stuck.launch(0, 2, 32, [&flag] {
    if (port::block() == 1) port::store_release(&flag, 1);
    while (port::load_acquire(&flag) == 0) port::pause();
  });
  EXPECT_EQ(stuck.run(), World::End::kStuck) << "block 0 waits for one that finds no room";
}

// Each world stores only when the other has: a turn of 64 threads for each, and both end.
TEST(World, OnTheRealClockWaitsForAnotherThreadsWorld) {
  std::uint64_t words[2] = {};
  const auto play = [&words](unsigned player) {
    World world({.seed = player, .policy = Policy::kRandom, .clock = Clock::kReal});
    world.launch(0, 1, 64, [&words, player] {
      for (std::uint64_t turn = 1; turn <= 100; ++turn) {
        if (port::thread() == player) {
          if (player == 0) port::store_release(&words[0], turn);
          while (port::load_acquire(&words[1 - player]) < turn) port::pause();
          if (player == 1) port::store_release(&words[1], turn);
        }
        port::block_barrier();
      }
    });
    EXPECT_EQ(world.run(), World::End::kIdle) << world.report();
  };
  std::thread other([&play] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(words[0], 100u);
  EXPECT_EQ(words[1], 100u);
}

TEST(World, OnTheRealClockIsStuckAfterSoManyMilliseconds) {
  World world({.clock = Clock::kReal, .stall_ms = 50});
  std::uint64_t never = 0;
  world.launch(3, 1, 32, [&never] {
    while (port::load_acquire(&never) == 0) port::pause();
  });
  const std::uint64_t begin_ns = world.now_ns();
  EXPECT_EQ(world.run(), World::End::kStuck);
  EXPECT_GE(world.now_ns() - begin_ns, 50'000'000u);
  EXPECT_THAT(world.report(), HasSubstr("stall"));
}

TEST(World, NamesThePlacesOfThreadsThatWaitForNobody) {
  if (kReportsRaces) GTEST_SKIP() << "nothing comes after threads that never end";
  World world({});
  std::uint64_t never = 0;
  world.launch(3, 1, 32, [&never] {
    while (port::load_acquire(&never) == 0) port::pause();
  });
  EXPECT_EQ(world.run(), World::End::kStuck);
  EXPECT_THAT(world.report(), HasSubstr("stall"));
  EXPECT_THAT(world.report(), HasSubstr("gpu 3 block 0: running"));
  EXPECT_THAT(world.report(), HasSubstr("emulator_test.cc:"));
  EXPECT_EQ(world.run(), World::End::kStuck) << "it stays so";
}

TEST(World, NamesTheBarrierAtWhichAThreadIsMissing) {
  if (kReportsRaces) GTEST_SKIP() << "nothing comes after threads that never end";
  World world({});
  world.launch(0, 2, 64, [] {
    if (port::thread() != 5) port::block_barrier();
  });
  EXPECT_EQ(world.run(), World::End::kStuck);
  EXPECT_THAT(world.report(), HasSubstr("deadlock"));
  EXPECT_THAT(world.report(), HasSubstr("block 1: at barrier"));
  EXPECT_THAT(world.report(), HasSubstr("x63"));
}

// The order in which threads come to a counter.
std::vector<unsigned> order_of(std::uint64_t seed, Policy policy) {
  World world({.seed = seed, .policy = policy, .yield_log2 = 1});
  std::vector<unsigned> order;
  std::uint64_t word = 0;
  world.launch(0, 2, 32, [&] {
    for (int i = 0; i < 3; ++i) {
      port::store_relaxed(&word, i);
      const Unwatched unwatched;  // in no order but the turns'
      order.push_back(port::block() * 32 + port::thread());
    }
  });
  EXPECT_EQ(world.run(), World::End::kIdle);
  return order;
}

TEST(World, ASeedReplaysARunAndAnotherSeedGivesAnother) {
  for (const Policy policy : {Policy::kRandom, Policy::kPriority}) {
    EXPECT_EQ(order_of(1, policy), order_of(1, policy));
    EXPECT_NE(order_of(1, policy), order_of(2, policy));
  }
}

// Message passing between two GPUs: the reader sees the flag; does it see the data?
enum class Order : std::uint8_t { kReleaseAcquire, kRelaxedStore, kRelaxedLoad };
int stale_reads(Order order, bool weak) {
  int stale = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 1, .weak = weak});
    alignas(16) std::array<std::uint64_t, 2> data{};
    alignas(16) std::array<std::uint64_t, 2> seen{};
    std::uint64_t flag = 0;
    world.launch(0, 1, 32, [&] {
      if (port::thread() != 0) return;
      port::store(data.data(), std::uint64_t{42});
      if (order == Order::kRelaxedStore)
        port::store_relaxed(&flag, 1);
      else
        port::store_release(&flag, 1);
    });
    world.launch(1, 1, 32, [&] {
      if (port::thread() != 0) return;
      seen[0] = port::load(data.data());  // an old copy in the cache
      const auto look = [&] {
        return order == Order::kRelaxedLoad ? port::load_relaxed(&flag) : port::load_acquire(&flag);
      };
      while (look() == 0) port::pause();
      seen[1] = port::load(data.data());
    });
    EXPECT_EQ(world.run(), World::End::kIdle) << world.report();
    stale += seen[1] != 42 ? 1 : 0;
  }
  return stale;
}

TEST(WeakMemory, ShowsAMissingReleaseAndAMissingAcquire) {
  EXPECT_EQ(stale_reads(Order::kReleaseAcquire, true), 0);
  EXPECT_GT(stale_reads(Order::kRelaxedStore, true), 0);
  EXPECT_GT(stale_reads(Order::kRelaxedLoad, true), 0);
  if (kReportsRaces) return;  // it would report the next, and be right
  EXPECT_EQ(stale_reads(Order::kRelaxedStore, false), 0) << "memory in program order hides it";
}

// Whether a slot that is given back, and written anew, may have been written under the eyes of its reader.
std::uint64_t overtaken_loads(Order order) {
  std::uint64_t overtaking = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 1, .weak = true});
    alignas(16) std::array<std::uint64_t, 2> slot{};
    std::uint64_t credit = 0;
    world.launch(0, 1, 32, [&] {
      static_cast<void>(port::load(&slot[port::thread() % 2]));
      port::block_barrier();
      if (port::thread() != 0) return;
      if (order == Order::kRelaxedStore)
        port::store_relaxed(&credit, 1);
      else
        port::store_release(&credit, 1);
      for (int turn = 0; turn < 100; ++turn) port::pause();
    });
    world.launch(1, 1, 32, [&] {
      if (port::thread() != 0) return;
      while (port::load_acquire(&credit) == 0) port::pause();
      port::store(slot.data(), std::uint64_t{42});
    });
    EXPECT_EQ(world.run(), World::End::kIdle) << world.report();
    overtaking += world.overtaking();
  }
  return overtaking;
}

TEST(WeakMemory, CountsStoresWhereALoadMayBeUnderWay) {
  EXPECT_EQ(overtaken_loads(Order::kReleaseAcquire), 0u);
  if (kReportsRaces) return;  // it would report the next, and be right
  EXPECT_GT(overtaken_loads(Order::kRelaxedStore), 0u);
}

// A release covers what other threads of the block stored before a barrier.
TEST(WeakMemory, AReleaseBehindABarrierSpeaksForTheBlock) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 2, .weak = true});
    alignas(16) std::array<std::uint64_t, 32> data{};
    std::uint64_t flag = 0;
    bool all_seen = true;
    world.launch(0, 1, 32, [&] {
      port::store(&data[port::thread()], std::uint64_t{1});
      port::block_barrier();
      if (port::thread() == 9) port::store_release(&flag, 1);
    });
    world.launch(1, 1, 32, [&] {
      if (port::thread() == 0) {
        while (port::load_acquire(&flag) == 0) port::pause();
      }
      port::block_barrier();
      if (port::load(&data[port::thread()]) != 1) all_seen = false;
    });
    ASSERT_EQ(world.run(), World::End::kIdle) << world.report();
    EXPECT_TRUE(all_seen) << "seed " << seed;
  }
}

TEST(Port, AWarpVotesAndALineMovesAsOne) {
  World world({.seed = 3, .policy = Policy::kRandom, .yield_log2 = 1});
  alignas(128) std::array<device::Word16, 8> line{};
  std::set<std::uint32_t> mixtures;
  std::uint64_t written = 0;
  world.launch(0, 1, 32, [&] {
    for (std::uint32_t round = 1; round <= 50; ++round) {
      if (port::thread() < 8) port::store_line(&line[port::thread()], {round, round, round, round});
    }
    if (port::thread() == 0) port::store_release(&written, 1);
  });
  world.launch(1, 1, 32, [&] {
    for (;;) {
      device::Word16 word{};
      if (port::thread() < 8) word = port::load_line(&line[port::thread()]);
      TUTTI_SHARED(std::uint32_t, seen);
      if (port::thread() == 0) seen = word.x;
      port::block_barrier();
      if (port::thread() < 8 && word.w != seen) mixtures.insert(word.w);
      if (!port::warp_any(port::load_acquire(&written) == 0)) break;
    }
  });
  ASSERT_EQ(world.run(), World::End::kIdle) << world.report();
  EXPECT_TRUE(mixtures.empty()) << "a line came in parts";
}

}  // namespace
}  // namespace tutti::emu
