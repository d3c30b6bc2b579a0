#include "communicator/measurement/choice_measurer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "model/fit_choices.h"
#include "tutti/communicator.h"

namespace tutti::detail {
namespace {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

// Runs `body` on each rank, with a communicator for messages and one for system calls.
void on_two_ranks(const std::function<void(Communicator&, Communicator&)>& body) {
  auto first = Communicator::create_all(2);
  auto second = Communicator::create_all(2);
  ASSERT_TRUE(first.ok() && second.ok());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] { body(*(*first)[rank], *(*second)[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::size_t count(const std::vector<Measurement>& measured, MeasuredWay way) {
  return static_cast<std::size_t>(std::count_if(measured.begin(), measured.end(), [&](const Measurement& one) {
    return one.what == measurement_name(2, way) && one.median_us > 0 && one.p95_us >= one.median_us;
  }));
}

TEST(ChoiceMeasurer, MeasuresAllWaysAtTheSameSizesInEachPass) {
  on_two_ranks([](Communicator& by_messages, Communicator& by_calls) {
    ChoiceMeasurer measurer(&by_messages, &by_calls, {.samples = 1, .sample_us = 20});
    ASSERT_TRUE(measurer.run().ok());
    ASSERT_TRUE(measurer.run().ok());
    EXPECT_FALSE(measurer.has_ended());
    const std::vector<Measurement>& measured = measurer.measured();
    using enum MeasuredWay;
    for (const MeasuredWay way : {kOneShot, kTwoShot, kRegisteredOneShot, kRegisteredTwoShot}) {
      EXPECT_EQ(count(measured, way), 2 * 6) << measurement_name(2, way);
    }
    for (const MeasuredWay way : {kAllReduceByMessages, kAllReduceByCalls, kBroadcastByMessages, kBroadcastByCalls,
                                  kAllGatherByMessages, kAllGatherByCalls}) {
      EXPECT_EQ(count(measured, way), 2 * 3) << measurement_name(2, way);
    }
    EXPECT_EQ(shortest_of(measured).size(), measured.size() / 2);
  });
}

TEST(ChoiceMeasurer, MeasuresOnlyTheWaysOfTheCommunicatorsItHas) {
  on_two_ranks([](Communicator& by_messages, Communicator& by_calls) {
    ChoiceMeasurer messages(&by_messages, nullptr, {.samples = 1, .sample_us = 20});
    ASSERT_TRUE(messages.run().ok());
    EXPECT_EQ(count(messages.measured(), MeasuredWay::kAllReduceByMessages), 3);
    EXPECT_EQ(count(messages.measured(), MeasuredWay::kAllReduceByCalls), 0);
    ChoiceMeasurer calls(nullptr, &by_calls, {.samples = 1, .sample_us = 20});
    ASSERT_TRUE(calls.run().ok());
    EXPECT_EQ(count(calls.measured(), MeasuredWay::kAllReduceByCalls), 3);
    EXPECT_EQ(calls.measured().size(), 9);
    ChoiceMeasurer only_short(&by_messages, nullptr, {.samples = 1, .sample_us = 20});
    ASSERT_TRUE(only_short.run(ChoiceGroups::kShortCalls).ok());
    EXPECT_EQ(only_short.measured().size(), 24);
  });
}

// After one microsecond nothing more is measured, on all ranks alike. A rank that went on alone would wait until the
// timeout.
TEST(ChoiceMeasurer, EndsWhenItsTimeIsOver) {
  on_two_ranks([](Communicator& by_messages, Communicator& by_calls) {
    ChoiceMeasurer measurer(&by_messages, &by_calls, {.samples = 1, .sample_us = 20, .most_us = 1});
    ASSERT_TRUE(measurer.run().ok());
    EXPECT_TRUE(measurer.has_ended());
    EXPECT_LE(measurer.measured().size(), 1);
  });
}

// Two busy threads for each core, so a rank waits for a core for more than a tenth of the time.
TEST(ChoiceMeasurer, EndsIfTheMachineIsBusy) {
  if (!std::ifstream("/proc/self/schedstat")) {
    GTEST_SKIP() << "the kernel does not report how long a thread waits for a core";
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 2 * std::max(1u, std::thread::hardware_concurrency()); ++i) {
    busy.emplace_back([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  }
  on_two_ranks([](Communicator& by_messages, Communicator& by_calls) {
    ChoiceMeasurer measurer(&by_messages, &by_calls, {.samples = 1, .sample_us = 10'000, .most_waiting = 0.1});
    ASSERT_TRUE(measurer.run().ok());
    EXPECT_TRUE(measurer.has_ended());
  });
  stop = true;
  for (std::thread& thread : busy) thread.join();
}

}  // namespace
}  // namespace tutti::detail
