// Tests the warning about ranks that are late, with the engine of a communicator in a simulated environment. Its clock
// makes a wait of minutes short.
#include "engine/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "communicator/communicator_impl.h"
#include "transports/sim/sim_environment.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kRanks = 3;
constexpr std::uint32_t kLate = 1;  // the rank that makes its call late
constexpr std::int64_t kSecondNs = 1'000'000'000;

struct Scenario {
  bool transfers = false;  // the late rank sends to each other rank; otherwise the call is an all_reduce
  std::int64_t late_s = 200;
  std::chrono::seconds timeout{300};
  std::vector<SimFault> faults{};
};

Status make_call(Communicator& communicator, const Scenario& scenario) {
  std::vector<float> data(5000);
  if (!scenario.transfers) {
    return communicator.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
  }
  if (communicator.rank() != static_cast<std::int32_t>(kLate)) {
    return communicator.receive(data.data(), data.size(), DataType::kFloat32, kLate);
  }
  Status status;
  for (const std::int32_t peer : {0, 2}) {
    if (status.ok()) status = communicator.send(data.data(), data.size(), DataType::kFloat32, peer);
  }
  return status;
}

// Makes two calls on every rank. The late rank first waits until `late_s`, and then makes both. Returns the log lines
// of all ranks.
std::string log_of(const Scenario& scenario) {
  SimEnvironment sim({.seed = 5, .ranks = kRanks, .faults = scenario.faults});
  const auto plan_cache = std::make_shared<VerifiedPlanCache>(true);
  ::testing::internal::CaptureStderr();
  sim.run([&](std::uint32_t rank) {
    const auto clock = sim.clock();
    Environment environment{.clock = clock,
                            .waiter = sim.waiter(rank),
                            .transport = sim.transport(rank),
                            .plan_cache = plan_cache,
                            .log = Log(LogLevel::kWarn, static_cast<std::int32_t>(rank))};
    const auto communicator = detail::CommunicatorImpl::wrap(std::make_unique<detail::CommunicatorImpl>(
        detail::Membership{.rank = rank, .ranks = kRanks}, std::move(environment), scenario.timeout));
    const auto waiter = sim.waiter(rank);
    const auto transport = sim.transport(rank);
    Idle idle;
    const std::int64_t start_ns = rank == kLate ? scenario.late_s * kSecondNs : 0;
    while (clock->now_ns() < start_ns) waiter->pause(idle, transport->doorbell(), start_ns - clock->now_ns());
    for (int call = 0; call < 2; ++call) {
      const Status status = make_call(*communicator, scenario);
      EXPECT_TRUE(status.ok()) << to_string(status.error());
    }
  });
  return ::testing::internal::GetCapturedStderr();
}

// The number of lines that begin with `start`.
int lines_from(std::string_view log, std::string_view start) {
  int lines = 0;
  for (std::size_t at = log.find(start); at != std::string_view::npos; at = log.find(start, at + 1)) ++lines;
  return lines;
}

TEST(Watchdog, ACollectiveThatWaitsLongNamesTheLateRankOnce) {
  const std::string log = log_of({});
  EXPECT_EQ(lines_from(log, "tutti[0]: warn: all_reduce #1"), 1) << log;
  EXPECT_EQ(lines_from(log, "tutti[2]: warn: all_reduce #1"), 1) << log;
  EXPECT_EQ(lines_from(log, "tutti["), 2) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("waited 60 s for rank 1:"), HasSubstr("not entered by rank 1;"),
                         HasSubstr("fails after 300 s without progress")));
}

TEST(Watchdog, AReceiveThatWaitsLongNamesTheSenderOnce) {
  const std::string log = log_of({.transfers = true});
  EXPECT_EQ(lines_from(log, "tutti[0]: warn: receive #1"), 1) << log;
  EXPECT_EQ(lines_from(log, "tutti[2]: warn: receive #1"), 1) << log;
  EXPECT_EQ(lines_from(log, "tutti["), 2) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("waited 60 s for rank 1:"), HasSubstr("fails after 300 s without progress")));
}

TEST(Watchdog, ARankThatIsLateByLessThanAMinuteCausesNoWarning) { EXPECT_THAT(log_of({.late_s = 50}), IsEmpty()); }

// Ranks 0 and 2 are stopped themselves for most of the time, so they cannot know whether rank 1 was late.
TEST(Watchdog, ARankThatWasStoppedDoesNotBlameOthers) {
  const auto stop = [](std::uint32_t rank) {
    return SimFault{.kind = SimFaultKind::kStop, .rank = rank, .at_ns = 10 * kSecondNs, .lasts_ns = 70 * kSecondNs};
  };
  EXPECT_THAT(log_of({.late_s = 90, .faults = {stop(0), stop(2)}}), IsEmpty());
}

}  // namespace
}  // namespace tutti
