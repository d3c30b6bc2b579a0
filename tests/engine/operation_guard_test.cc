// Tests of OperationGuard, with the engines of two ranks in a simulated environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "communicator/communicator_impl.h"
#include "engine/operation.h"
#include "transports/sim/sim_environment.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kGuardRanks = 2;
constexpr std::int64_t kNsPerSecond = 1'000'000'000;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// Reports a failure when it is asked for the time `failing_ask`, from 0 on, and at all later times.
class FakeGuard final : public OperationGuard {
 public:
  explicit FakeGuard(std::size_t failing_ask) : failing_ask_(failing_ask) {}

  std::optional<Error> find_failure() override {
    if (asked_++ < failing_ask_) return std::nullopt;
    return Error{ErrorCode::kDevice, ErrorScope::kCall, 7, "another part has failed"};
  }
  void failed(const Error& error) noexcept override { errors_.push_back(error); }

  std::size_t asked() const { return asked_; }
  const std::vector<Error>& errors() const { return errors_; }  // those of failed()

 private:
  const std::size_t failing_ask_;
  std::size_t asked_ = 0;
  std::vector<Error> errors_;
};

// The start condition of a call in a stream. All work in the stream before the call has ended, so the call can start at
// once.
class FakeStream final : public StartCondition {
 public:
  explicit FakeStream(const FakeGuard& guard) : guard_(guard) {}

  bool open() const override { return true; }
  std::optional<Error> lost() override { return std::nullopt; }
  void ended(const Status& /*result*/) noexcept override { errors_before_ = guard_.errors().size(); }
  void dropped() noexcept override {}
  bool finished() override { return true; }
  Status outcome() override { return {}; }

  // How many errors the guard had been told when the stream was allowed to continue.
  std::size_t errors_before() const { return errors_before_; }

 private:
  const FakeGuard& guard_;
  std::size_t errors_before_ = 0;
};

struct GuardScenario {
  std::size_t failing_ask = kNever;
  std::int64_t late_s = 0;  // when rank 1 makes its call
  std::chrono::seconds timeout{300};
};

struct GuardOutcome {
  std::array<Status, kGuardRanks> results;
  bool started = false;         // the values of rank 0, which has the guard
  bool broken = false;          // after the call
  std::int64_t ended_at_s = 0;  // the time of the clock
  std::vector<float> values;
  std::shared_ptr<FakeGuard> guard;
  std::shared_ptr<FakeStream> stream;
};

// Makes an all_reduce on both ranks. The operation of rank 0 has a guard and a stream.
GuardOutcome run_guarded(const GuardScenario& scenario) {
  GuardOutcome outcome;
  outcome.guard = std::make_shared<FakeGuard>(scenario.failing_ask);
  outcome.stream = std::make_shared<FakeStream>(*outcome.guard);
  SimEnvironment sim({.seed = 5, .ranks = kGuardRanks});
  const auto plan_cache = std::make_shared<VerifiedPlanCache>(true);
  sim.run([&](std::uint32_t rank) {
    const auto clock = sim.clock();
    detail::CommunicatorImpl communicator(
        detail::Membership{.rank = rank, .ranks = kGuardRanks},
        Environment{
            .clock = clock, .waiter = sim.waiter(rank), .transport = sim.transport(rank), .plan_cache = plan_cache},
        scenario.timeout);
    const auto waiter = sim.waiter(rank);
    const auto transport = sim.transport(rank);
    Idle idle;
    const std::int64_t start_ns = rank == 1 ? scenario.late_s * kNsPerSecond : 0;
    while (clock->now_ns() < start_ns) waiter->pause(idle, transport->doorbell(), start_ns - clock->now_ns());
    std::vector<float> data(5000, static_cast<float>(rank + 1));
    const CollectiveCall call{
        .input = data.data(), .output = data.data(), .count = data.size(), .type = DataType::kFloat32};
    std::shared_ptr<Operation> operation;
    {
      const std::scoped_lock lock(communicator.submission_mutex());
      operation = communicator.operations().prepare(call, {}).value();
      if (rank == 0) operation->guard = outcome.guard;
      if (rank == 0) operation->start_condition = outcome.stream;
      const Status submitted = communicator.engine().submit(operation, Engine::Progress::kByCaller);
      EXPECT_TRUE(submitted.ok() || rank == 1);
      if (!submitted.ok()) outcome.results[rank] = submitted;
      if (!submitted.ok()) return;
    }
    outcome.results[rank] = communicator.engine().wait(*operation);
    if (rank != 0) return;
    outcome.started = operation->started;
    outcome.broken = communicator.engine().broken().has_value();
    outcome.ended_at_s = clock->now_ns() / kNsPerSecond;
    outcome.values = std::move(data);
  });
  return outcome;
}

// The operation ends with the failure that the guard has found, and both ranks name the rank of the guard.
void expect_the_failure_of_the_guard(const GuardOutcome& outcome) {
  ASSERT_FALSE(outcome.results[0].ok());
  const Error& error = outcome.results[0].error();
  EXPECT_EQ(error.code, ErrorCode::kDevice);
  EXPECT_EQ(error.scope, ErrorScope::kCommunicator);
  EXPECT_EQ(error.rank, 0);
  EXPECT_THAT(error.message, AllOf(HasSubstr("all_reduce #1"), HasSubstr("another part has failed")));
  EXPECT_TRUE(outcome.broken);
  EXPECT_EQ(outcome.guard->errors(), std::vector<Error>{error}) << "failed() gets the error of the operation, once";
  EXPECT_EQ(outcome.stream->errors_before(), 1U) << "the stream continues before failed() is called";
  ASSERT_FALSE(outcome.results[1].ok());
  EXPECT_EQ(outcome.results[1].error().rank, 0) << to_string(outcome.results[1].error());
}

TEST(OperationGuard, AFailureBeforeTheStartEndsTheOperation) {
  const GuardOutcome outcome = run_guarded({.failing_ask = 0});
  expect_the_failure_of_the_guard(outcome);
  EXPECT_FALSE(outcome.started);
  EXPECT_EQ(outcome.guard->asked(), 1U);
}

TEST(OperationGuard, AFailureDuringTheOperationEndsItSoon) {
  const GuardOutcome outcome = run_guarded({.failing_ask = 3, .late_s = 100});
  expect_the_failure_of_the_guard(outcome);
  EXPECT_TRUE(outcome.started);
  EXPECT_EQ(outcome.guard->asked(), 4U);
  EXPECT_LT(outcome.ended_at_s, 5);
}

TEST(OperationGuard, IsToldOnceHowTheOperationHasFailed) {
  const GuardOutcome outcome = run_guarded({.late_s = 100, .timeout = std::chrono::seconds(20)});
  ASSERT_FALSE(outcome.results[0].ok());
  EXPECT_EQ(outcome.results[0].error().code, ErrorCode::kTimeout);
  EXPECT_EQ(outcome.guard->errors(), std::vector<Error>{outcome.results[0].error()});
  EXPECT_EQ(outcome.stream->errors_before(), 1U);
}

TEST(OperationGuard, WithoutAFailureChangesNothing) {
  const GuardOutcome outcome = run_guarded({.late_s = 100});
  for (const Status& result : outcome.results) EXPECT_TRUE(result.ok()) << to_string(result.error());
  EXPECT_EQ(outcome.values, std::vector<float>(5000, 3.0F));
  EXPECT_FALSE(outcome.broken);
  EXPECT_GT(outcome.guard->asked(), 1U);
  EXPECT_THAT(outcome.guard->errors(), IsEmpty());
}

TEST(OperationGuard, IsSharedByTheReplaysOfAGraph) {
  Operation operation;
  operation.guard = std::make_shared<FakeGuard>(kNever);
  EXPECT_EQ(operation.again()->guard, operation.guard);
}

}  // namespace
}  // namespace tutti
