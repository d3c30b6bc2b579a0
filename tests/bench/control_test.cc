// Tests of Control, the barrier between the processes of a benchmark. Here the ranks are threads, and each maps the
// shared file as a process would.
#include "bench/compare/control.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tutti::compare {
namespace {

// Runs `work` in one thread for each rank. All threads belong to one job and have their own Control object.
void with_ranks(int ranks, const std::function<void(Control&)>& work) {
  std::string path = testing::TempDir() + "controlXXXXXX";
  const int file = ::mkstemp(path.data());
  ASSERT_GE(file, 0);
  ::close(file);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto control = Control::create(path, rank, ranks);
      ASSERT_TRUE(control) << to_string(control.error());
      work(**control);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ::unlink(path.c_str());
}

// With 2 ranks the barrier spins first if there are two cores. With 7 ranks it sleeps immediately on small machines.
TEST(Control, NobodyLeavesABarrierBeforeAllHaveCome) {
  for (const int ranks : {1, 2, 7}) {
    std::atomic<int> arrivals = 0;
    with_ranks(ranks, [&](Control& control) {
      for (int round = 1; round <= 500; ++round) {
        ++arrivals;
        control.barrier();
        ASSERT_GE(arrivals, round * ranks);
        control.barrier();
      }
    });
    EXPECT_EQ(arrivals, 500 * ranks);
  }
}

TEST(Control, EveryRankSeesTheSpreadOfAll) {
  with_ranks(5, [](Control& control) {
    for (int round = 0; round < 100; ++round) {
      const Control::Spread spread = control.spread(control.rank() + round);
      ASSERT_DOUBLE_EQ(spread.least, round);
      ASSERT_DOUBLE_EQ(spread.most, 4 + round);
      ASSERT_DOUBLE_EQ(spread.mean, 2 + round);
    }
  });
}

TEST(Control, ImpossibleRanksAndMissingFilesAreRefused) {
  const auto outside = Control::create("control", 2, 2);
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Control::create("control", 0, kMaxRanks + 1).error().code, ErrorCode::kInvalidArgument);
  const auto missing = Control::create(testing::TempDir() + "no-such-folder/control", 0, 1);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kSystem);
}

}  // namespace
}  // namespace tutti::compare
