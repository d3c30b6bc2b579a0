#include "communicator/measurement/first_choices.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

#include "job/job_context.h"
#include "selection/tuning.h"

namespace tutti::detail {
namespace {

// Whether a job of two ranks on one machine may measure if `change` has changed it.
bool may_measure_with(const std::function<void(JobContext&)>& change, std::uint32_t ranks = 2) {
  JobContext job_context;
  job_context.machines.assign(ranks, 0);
  change(job_context);
  return may_measure(job_context, ranks);
}

TEST(FirstChoices, OnlyOrdinaryJobsOnOneMachineMayMeasure) {
  using namespace std::chrono_literals;
  EXPECT_TRUE(may_measure_with([](JobContext&) {}));
  EXPECT_TRUE(may_measure_with([](JobContext& job) { job.cpu_limit = 2; }));
  EXPECT_TRUE(may_measure_with([](JobContext&) {}, kMostMeasuringRanks));
  EXPECT_FALSE(may_measure_with([](JobContext&) {}, 1));
  EXPECT_FALSE(may_measure_with([](JobContext&) {}, kMostMeasuringRanks + 1));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.config.measure = false; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.config.setup_timeout = 4'999ms; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.cpu_limit = 1; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.config.tune_file = "/some/file"; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.config.attach = AttachPolicy::kOff; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.config.attach = AttachPolicy::kCalls; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.config.checksum = true; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.config.transport = TransportPolicy::kTcp; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.devices = true; }));
  EXPECT_FALSE(may_measure_with([](JobContext& job) { job.machines = {0, 1}; }));
}

TEST(FirstChoices, RanksMeasureWhatIsMissing) {
  Tuning tuning;
  EXPECT_FALSE(needs_measurement(tuning, 2, 2)) << "rank 0 does not permit it";
  tuning.measure = true;
  EXPECT_TRUE(needs_measurement(tuning, 2, 2));
  EXPECT_FALSE(needs_measurement(tuning, 3, 2)) << "the ranks share cores";
  EXPECT_FALSE(needs_measurement(tuning, 2, 0)) << "the number of cores is unknown";
  tuning.parameters.choices = {{.ranks = 3, .cores = 2}};
  EXPECT_TRUE(needs_measurement(tuning, 2, 2)) << "there are only choices for ranks that share cores";
  tuning.parameters.choices.push_back({.ranks = 2, .cores = 2});
  EXPECT_FALSE(needs_measurement(tuning, 4, 8));
  tuning.parameters.choices.assign(kMostRankChoices, {.ranks = 3, .cores = 2});
  EXPECT_FALSE(needs_measurement(tuning, 2, 2)) << "no more choices fit into a file";
}

}  // namespace
}  // namespace tutti::detail
